//! Captured requests of real clients, sent to Nacre's servers. The test compares each reply and
//! each callback with the captured one field by field. `differences.txt` lists the accepted
//! differences with their reasons.
//!
//! The captures are one continuous run of two clients from their mounts on, in the order of
//! [`CAPTURES`]: each capture depends on the state that the one before has left. `not_played.txt`
//! lists requests that are not sent, each with the reason. `NACRE_REPLAY_UNTIL=d1_mkdir` ends the
//! test after that capture.

#![allow(clippy::unwrap_used)]

mod allocation;
mod compare;
mod ids;
mod node;
mod player;
mod release;
mod servers;

use player::Player;
use release::ClientRelease;
use std::sync::{Mutex, PoisonError};

/// The captures in their order. A capture with a text after its name is not played.
const CAPTURES: &str = include_str!("captures.txt");

#[test]
fn every_capture_is_played_or_excluded_with_a_reason() {
    let mut named: Vec<_> = CAPTURES
        .lines()
        .filter(|l| !l.starts_with('#'))
        .filter_map(|l| l.split_whitespace().next())
        .map(|label| format!("{label}.pcap.gz"))
        .collect();
    named.sort();
    let files = std::fs::read_dir(testbase::captured::dir()).unwrap();
    let mut files: Vec<_> = files
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(named, files);
}

/// Allows one run at a time: each run uses the same addresses.
static RUN_LOCK: Mutex<()> = Mutex::new(());

/// Plays the whole run with clients of this release.
fn play(release: ClientRelease) {
    let _run_lock = RUN_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut player = Player::start(release).await;
        let until = std::env::var("NACRE_REPLAY_UNTIL").unwrap_or_default();
        for label in CAPTURES
            .lines()
            .filter(|l| !l.starts_with('#') && !l.contains(' '))
        {
            player.play(label).await;
            if label == until {
                break;
            }
        }
        player.end().await;
    });
}

#[test]
fn replies_and_callbacks_match_the_captured_ones_of_a_real_server() {
    play(ClientRelease::CAPTURED);
}

#[test]
fn replies_and_callbacks_to_clients_of_2_12_match() {
    play(ClientRelease::V2_12);
}

#[test]
fn replies_and_callbacks_to_clients_of_2_15_match() {
    play(ClientRelease::V2_15);
}
