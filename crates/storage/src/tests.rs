//! Tests that look below the public surface: crashes, damage, and what is really on disk.

mod generate;
mod group_commit;
mod kill;
mod log;
mod node;
mod opening;
mod power_cut;
mod reference;
mod snapshots;
mod state;
