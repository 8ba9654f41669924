//! Concurrent operations of several mounts in one directory are linearizable: with parallel
//! directory operations (PDO), without PDO, and while PDO is switched on or off.
//!
//! Each round has its own directory and seed. The seed determines the operations, but not how they
//! interleave. `NACRE_LINEAR_ROUNDS` sets the number of rounds of each test, `NACRE_LINEAR_SEED`
//! the first seed. `cargo xtask linear` runs many rounds of an optimised build.

#![allow(clippy::unwrap_used, unreachable_pub)]

mod check;
mod history;
mod play;

use std::sync::Arc;
use std::time::Duration;

use check::Directory;
use play::{Round, RoundConfig};
use testkit::Cluster;

/// Default number of rounds per test.
const ROUNDS: u64 = 25;
/// Limit of a wait for a reply.
const SOON: Duration = Duration::from_secs(120);

/// Each operation uses one name: every name has a long history of its own.
const SEPARATE: RoundConfig = RoundConfig {
    names: 3,
    tasks: 12,
    ops: 12,
    coupled: false,
    others: 0,
};
/// Has links and renames too, which join all names to one history.
const COUPLED: RoundConfig = RoundConfig {
    names: 4,
    tasks: 8,
    ops: 12,
    coupled: true,
    ..SEPARATE
};
/// A directory with several pages.
const LARGE: RoundConfig = RoundConfig {
    others: 300,
    ..COUPLED
};

/// The number in an environment variable, or `default` without the variable.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|e| panic!("{name}={text} is not a number: {e}"))
    })
}

/// Whether PDO is on in a phase. The round with seed `s` starts in phase `2 * s`, and continues in
/// phase `2 * s + 1`.
type Pdo = fn(u64) -> bool;

async fn play(mounts: usize, pdo: Pdo) {
    let cluster = Cluster::start(2).await;
    let mut clients = Vec::new();
    for _ in 0..mounts {
        clients.push(cluster.mount().await);
    }
    let first = number("NACRE_LINEAR_SEED", 1);
    for seed in first..first + number("NACRE_LINEAR_ROUNDS", ROUNDS) {
        let config = match seed % 5 {
            0 | 1 => SEPARATE,
            4 => LARGE,
            _ => COUPLED,
        };
        let switch = |on: bool| {
            let value = if on { "ON" } else { "OFF" };
            cluster.params.set("osd-*.*-MDT*.pdo", value).unwrap();
        };
        switch(pdo(2 * seed));
        let round = async {
            let round = Round::begin(&clients[0], clients[0].root(), seed, config).await;
            let round = Arc::new(round);
            let history = round.play(&clients, seed);
            tokio::pin!(history);
            // PDO may be switched during the round.
            let events = tokio::select! {
                events = &mut history => events,
                () = tokio::time::sleep(Duration::from_millis(seed % 8)) => {
                    switch(pdo(2 * seed + 1));
                    history.await
                }
            };
            (round.elsewhere.fid, events)
        };
        let result = tokio::time::timeout(SOON, round).await;
        let (elsewhere, events) =
            result.unwrap_or_else(|_| panic!("the round of seed {seed} does not finish"));
        let directory = Directory {
            names: config.names,
            elsewhere: &[elsewhere],
        };
        if let Err(fault) = directory.check(&events) {
            panic!("the round of seed {seed}, {mounts} mounts: {fault}");
        }
    }
    for client in clients {
        client.umount().await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_one_directory_are_linearizable_with_pdo() {
    play(4, |_| true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_one_directory_are_linearizable_without_pdo() {
    play(3, |_| false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_one_directory_are_linearizable_while_pdo_is_switched() {
    play(2, |n| n % 2 == 0).await;
}
