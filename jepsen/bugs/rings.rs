//! Which bug is looked for where: the fastest test that shows it, and for those that users would
//! meet a run on real processes as well.

/// Where a bug is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ring {
    /// A test in one process, by its package, target and name. It draws from `TENURE_SEED`, or from
    /// the order in which threads run.
    Drawn(&'static str, &'static str, &'static str),
    /// One that does the same each time: once is enough.
    Fixed(&'static str, &'static str, &'static str),
    /// `jepsen/run` with these words.
    Run(&'static str),
}

/// A seeded bug.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bug {
    /// As in `crates/state-machine/src/seeded.rs`.
    pub(crate) number: u8,
    /// What `TENURE_SEEDED_BUG` calls it.
    pub(crate) name: &'static str,
    pub(crate) rings: &'static [Ring],
}

const WALK: Ring = Ring::Drawn(
    "tenure-state-machine",
    "random",
    "every_walk_agrees_with_the_oracle_and_together_they_fill_every_cell",
);
const STORAGE: &str = "tenure-storage";
const UNITS: &str = "tenure_storage";
const TESTS: &str = "tenure-tests";
const CLUSTERS: &str = "clusters";

/// All of them.
pub(crate) const BUGS: [Bug; 21] = [
    Bug {
        number: 1,
        name: "get-without-read-index",
        rings: &[
            Ring::Drawn(
                TESTS,
                CLUSTERS,
                "reads::a_deposed_leader_never_answers_from_its_old_state",
            ),
            Ring::Run("--workload lease --nemesis partition --seconds 35 --workers 16"),
        ],
    },
    Bug {
        number: 2,
        name: "read-on-clock-lease",
        rings: &[Ring::Drawn(
            TESTS,
            CLUSTERS,
            "reads::a_leader_that_was_deposed_a_moment_ago_does_not_go_by_its_clock",
        )],
    },
    Bug {
        number: 3,
        name: "apply-reads-clock",
        rings: &[WALK, Ring::Run("--workload lease --nemesis clock --seconds 5")],
    },
    Bug {
        number: 4,
        name: "stamp-not-clamped",
        rings: &[WALK, Ring::Run("--workload lease --nemesis skew --seconds 12")],
    },
    Bug {
        number: 5,
        name: "steal-ignores-extend",
        rings: &[WALK, Ring::Run("--workload expiry --nemesis kill --seconds 5")],
    },
    Bug {
        number: 6,
        name: "token-not-checked",
        rings: &[WALK, Ring::Run("--workload paused --nemesis pause --seconds 5")],
    },
    Bug {
        number: 7,
        name: "token-per-record",
        rings: &[WALK, Ring::Run("--workload tokens --nemesis kill --seconds 5")],
    },
    Bug {
        number: 8,
        name: "token-not-in-snapshot",
        rings: &[
            Ring::Drawn(
                STORAGE,
                UNITS,
                "tests::snapshots::a_snapshot_gives_another_node_the_same_state",
            ),
            Ring::Run("--workload membership --nemesis membership,snapshot --seconds 25"),
        ],
    },
    Bug {
        number: 9,
        name: "snapshot-omits-last-keys",
        rings: &[
            Ring::Drawn(
                STORAGE,
                UNITS,
                "tests::snapshots::a_snapshot_gives_another_node_the_same_state",
            ),
            Ring::Run("--workload durability --nemesis membership,snapshot --seconds 15"),
        ],
    },
    Bug {
        number: 10,
        name: "acknowledged-before-fsync",
        rings: &[
            Ring::Drawn(
                TESTS,
                CLUSTERS,
                "durability::what_was_acknowledged_survives_power_cuts_of_all_nodes",
            ),
            Ring::Run("--workload durability --nemesis power-cut --seconds 30"),
        ],
    },
    Bug {
        number: 11,
        name: "vote-not-fsynced",
        rings: &[Ring::Drawn(
            STORAGE,
            UNITS,
            "tests::power_cut::a_power_cut_takes_nothing_that_was_acknowledged_and_brings_nothing_back",
        )],
    },
    Bug {
        number: 12,
        name: "hole-skipped",
        rings: &[
            Ring::Fixed(STORAGE, UNITS, "tests::opening::a_missing_entry_in_the_middle_is_refused"),
            Ring::Fixed(
                STORAGE,
                UNITS,
                "tests::opening::a_damaged_log_is_refused_and_nothing_of_it_overwritten",
            ),
        ],
    },
    Bug {
        number: 13,
        name: "fsync-error-ignored",
        rings: &[Ring::Drawn(
            STORAGE,
            UNITS,
            "tests::power_cut::a_power_cut_takes_nothing_that_was_acknowledged_and_brings_nothing_back",
        )],
    },
    Bug {
        number: 14,
        name: "retry-applied-twice",
        rings: &[
            Ring::Fixed(
                TESTS,
                CLUSTERS,
                "outcomes::a_forwarded_command_is_sent_once_however_late_its_answer_comes",
            ),
            Ring::Run("--workload lease --nemesis mute --seconds 20"),
        ],
    },
    Bug {
        number: 15,
        name: "unknown-said-refused",
        rings: &[
            Ring::Drawn(
                TESTS,
                CLUSTERS,
                "outcomes::whatever_is_cut_refused_never_commits_and_acknowledged_stays",
            ),
            Ring::Run("--workload dedup --nemesis deaf --seconds 20"),
        ],
    },
    Bug {
        number: 16,
        name: "membership-not-in-snapshot",
        rings: &[Ring::Fixed(
            STORAGE,
            UNITS,
            "tests::snapshots::an_installed_snapshot_brings_its_membership_and_who_was_removed",
        )],
    },
    Bug {
        number: 17,
        name: "wiped-node-rejoins",
        rings: &[Ring::Drawn(
            TESTS,
            CLUSTERS,
            "membership::a_voter_that_lost_its_disk_is_refused_and_comes_back_only_under_a_new_id",
        )],
    },
    Bug {
        number: 18,
        name: "purge-by-stale-index",
        rings: &[Ring::Drawn(
            STORAGE,
            UNITS,
            "tests::state::a_state_on_disk_is_what_it_is_in_memory_whatever_a_power_cut_takes",
        )],
    },
    Bug {
        number: 19,
        name: "half-batch-applied",
        rings: &[Ring::Drawn(
            STORAGE,
            UNITS,
            "tests::kill::a_node_that_is_killed_at_any_write_starts_again_with_all_that_it_said",
        )],
    },
    Bug {
        number: 20,
        name: "damage-served",
        rings: &[Ring::Fixed(
            "tenure-state-machine",
            "codec",
            "a_sealed_value_with_any_one_bit_flipped_is_refused",
        )],
    },
    Bug {
        number: 21,
        name: "dead-waiter-granted",
        rings: &[
            Ring::Fixed(
                TESTS,
                CLUSTERS,
                "waiting::a_waiter_whose_connection_is_closed_is_dropped_before_it_is_proposed",
            ),
            Ring::Run("--workload hang-ups --nemesis snapshot --seconds 8"),
        ],
    },
];

impl Ring {
    /// For people.
    pub(crate) fn text(self) -> String {
        match self {
            Self::Drawn(package, _, test) | Self::Fixed(package, _, test) => {
                let test = test.strip_prefix("tests::").unwrap_or(test);
                format!("{package}: {}", test.replace("::", ": ").replace('_', " "))
            }
            Self::Run(words) => format!("jepsen/run {words}"),
        }
    }
}
