//! Captured requests of real clients, sent to Nacre's servers; each reply is compared with the
//! captured one field by field. `differences.txt` lists the accepted differences with their
//! reasons.
//!
//! The captures are one continuous run of two clients from their mounts on, in the order of
//! [`LIFE`]: each depends on the state left by the one before. Requests that depend on uncaptured
//! operations are listed in `not_played.txt`.

#![allow(clippy::unwrap_used)]

mod compare;
mod ids;
mod node;
mod player;
mod prelude;
mod servers;
mod vintage;

use player::Player;
use std::sync::{Mutex, PoisonError};
use vintage::Vintage;

/// The captures in their order.
const LIFE: &str = include_str!("life.txt");

#[test]
fn every_capture_is_played_or_excluded_with_a_reason() {
    let mut named: Vec<_> = LIFE
        .lines()
        .filter(|l| !l.starts_with('#'))
        .filter_map(|l| l.split_whitespace().next())
        .map(|label| format!("{label}.pcap.gz"))
        .collect();
    named.sort();
    let files = std::fs::read_dir(crate::captured::dir()).unwrap();
    let mut files: Vec<_> = files
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(named, files);
}

/// A run needs the addresses of the captured nodes exclusively.
static ALONE: Mutex<()> = Mutex::new(());

/// Plays the whole run with clients of this release.
fn play(vintage: Vintage) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut player = Player::start(vintage).await;
        let until = std::env::var("NACRE_REPLAY_UNTIL").unwrap_or_default();
        for label in LIFE.lines().filter(|l| !l.starts_with('#') && !l.contains(' ')) {
            player.play(label).await;
            if label == until {
                break;
            }
        }
        player.end().await;
    });
}

#[test]
fn replies_match_those_of_a_real_server() {
    play(Vintage::CAPTURED);
}

#[test]
fn replies_to_clients_of_2_12_match() {
    play(Vintage::V2_12);
}

#[test]
fn replies_to_clients_of_2_15_match() {
    play(Vintage::V2_15);
}
