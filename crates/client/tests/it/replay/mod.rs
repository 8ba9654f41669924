//! The client's side of captures of real clients, played against Nacre's servers, and each reply compared with the
//! captured one field by field. What differs stands in `differences.txt` with its reason.
//!
//! The captures tell one life of two clients, from their mounts on, in the order of [`LIFE`]: what one leaves behind the
//! next finds. What happened between captures is not known: what rests on it is in `not_played.txt`.

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

/// The captures that are played, in their order.
const LIFE: &str = include_str!("life.txt");

#[test]
fn every_capture_is_played_or_has_a_reason() {
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

/// A life has the addresses of the captured nodes to itself.
static ALONE: Mutex<()> = Mutex::new(());

/// Plays the whole life, its clients asking as those of this release do.
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
fn replies_are_those_of_a_real_server() {
    play(Vintage::CAPTURED);
}

#[test]
fn clients_of_2_12_live_the_same_life() {
    play(Vintage::V2_12);
}

#[test]
fn clients_of_2_15_live_the_same_life() {
    play(Vintage::V2_15);
}
