//! Golden transitions: scripts with their answers below, one behaviour a file.
//!
//! The language is that of `script`. After a change, `UPDATE_GOLDENFILES=1 cargo test` rewrites
//! the answers: read the difference, and keep only what the rules explain. The script of a bug that
//! was fixed is named `regression_…`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test says by a panic that it failed"
)]

mod script;

/// One test a script, named for the behaviour.
macro_rules! scripts {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            goldenscript::run(&mut script::Machine::default(), golden().join(stringify!($name)))
                .unwrap();
        })*

        #[test]
        fn every_script_is_run() {
            let files = std::fs::read_dir(golden()).unwrap();
            let mut found: Vec<_> =
                files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
            found.sort();
            assert_eq!(found, [$(stringify!($name)),*]);
        }
    };
}

fn golden() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

// In the order of file names.
scripts! {
    a_crash_holds_a_record_for_one_lease_not_for_its_ttl,
    a_deadline_has_passed_at_its_own_millisecond,
    a_late_release_does_not_free_the_next_holders_record,
    a_late_request_changes_nothing,
    a_lease_can_be_extended_again_and_again,
    a_lease_of_zero_is_refused_and_none_is_the_default,
    a_payload_over_the_limit_is_refused_and_the_lease_stays,
    a_purgeable_record_is_absent_for_every_operation,
    a_refusal_changes_no_record_but_moves_the_clock,
    a_restored_snapshot_goes_on_as_if_nothing_had_happened,
    a_short_lease_is_kept_exactly,
    a_steal_replaces_the_fingerprint,
    a_token_of_another_name_is_never_accepted,
    acquire_answers_by_what_the_record_is,
    an_empty_state_has_a_snapshot,
    an_expired_lease_still_belongs_to_its_holder,
    attempts_holders_and_fingerprints_have_limits,
    commands_of_one_entry_share_the_clock_and_see_each_other,
    complete_answers_by_what_the_record_is,
    completing_again_keeps_the_first_result,
    durations_out_of_bounds_are_refused_and_large_ones_do_not_wrap,
    every_duplicate_sees_the_first_token_and_completion,
    expiry_needs_no_purge,
    extend_answers_by_what_the_record_is,
    extend_never_shortens_a_lease,
    extend_revives_an_expired_lease_that_nobody_stole,
    fingerprints_are_compared_when_both_sides_carry_one,
    get_answers_by_what_the_record_is,
    names_have_limits_and_are_compared_byte_for_byte,
    no_payload_is_not_an_empty_payload,
    purge_answers_by_what_the_record_is,
    purge_deletes_the_oldest_deadlines_first,
    purge_keeps_a_long_action_whose_heartbeat_is_alive,
    release_answers_by_what_the_record_is,
    sums_of_times_saturate,
    the_clock_never_goes_back,
    the_same_attempt_gets_the_same_token,
    the_ttl_counts_from_the_acquire_and_again_from_the_completion,
    tokens_and_purge_limits_have_bounds,
    tokens_increase_over_release_purge_and_snapshot,
}
