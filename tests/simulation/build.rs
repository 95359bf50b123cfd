//! Shows this binary's `getrandom` to who looks it up by name at run time: see entropy.rs.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol=getrandom");
}
