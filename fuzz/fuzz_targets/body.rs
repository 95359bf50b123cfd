#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _accepted = tenure_decoders::run("body", bytes);
});
