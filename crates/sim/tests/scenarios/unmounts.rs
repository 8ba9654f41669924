//! An unmount ends when the servers have committed the changes of the mount.

use std::time::Duration;

use bytes::Bytes;
use client::{SAVE_MAX, Unsaved};
use sim::cluster::Death;
use sim::scenario::{Scenario, play};
use tokio::time::{Instant, sleep};

/// Writes a file on client 0 and closes it. No server has to commit it.
async fn write_file(s: &Scenario, name: &str, data: &'static [u8]) {
    let file = s.open(0, name).await;
    s.on(0, async |mount| {
        mount.write(&file, 0, Bytes::from_static(data)).await.unwrap();
        mount.release(&file).await.unwrap();
    })
    .await;
}

/// The contents of a file, as client 1 reads it.
async fn contents(s: &Scenario, name: &str) -> Vec<u8> {
    let file = s.open(1, name).await;
    s.on(1, async |mount| mount.read(&file, 0, 100).await.unwrap().concat())
        .await
}

/// Unmounts client 0.
async fn unmount(s: &Scenario) -> Vec<Unsaved> {
    s.on(0, async |mount| mount.umount().await).await
}

/// Kills all servers.
async fn kill_servers(s: &Scenario, death: Death) {
    for server in &s.cluster.servers {
        s.cluster.kill(server, death).await;
    }
}

async fn start_servers(s: &Scenario) {
    for server in &s.cluster.servers {
        s.cluster.start(server).await.unwrap();
    }
}

#[test]
fn files_survive_a_power_cut_of_the_servers_right_after_the_unmount() {
    play(51, async |s| {
        write_file(&s, "file", b"kept").await;
        assert_eq!(unmount(&s).await, []);
        kill_servers(&s, Death::PowerCut).await;
        start_servers(&s).await;
        assert_eq!(contents(&s, "file").await, b"kept");
    });
}

#[test]
fn an_unmount_waits_for_servers_that_restart() {
    play(52, async |s| {
        write_file(&s, "file", b"kept").await;
        kill_servers(&s, Death::PowerCut).await;
        let restart = async {
            sleep(Duration::from_secs(15)).await;
            start_servers(&s).await;
        };
        let (unsaved, ()) = tokio::join!(unmount(&s), restart);
        assert_eq!(unsaved, []);
        assert_eq!(contents(&s, "file").await, b"kept");
    });
}

#[test]
fn an_unmount_names_servers_that_stay_away() {
    play(53, async |s| {
        let file = s.open(0, "file").await;
        let data = Bytes::from_static(b"lost");
        s.on(0, async |mount| mount.write(&file, 0, data).await.unwrap())
            .await;
        kill_servers(&s, Death::PowerCut).await;
        let begin = Instant::now();
        let unsaved = unmount(&s).await;
        assert!(
            begin.elapsed() < SAVE_MAX + Duration::from_secs(60),
            "{:?}",
            begin.elapsed()
        );
        let is_of = |name: &str, import: &String| import.contains(name);
        assert!(
            matches!(&unsaved[..], [Unsaved::Data { import: ost }, Unsaved::Changes { import: mdt, .. }]
                if is_of("-osc-", ost) && is_of("-mdc-", mdt)),
            "{unsaved:?}"
        );
    });
}
