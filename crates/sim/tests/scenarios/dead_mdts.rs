//! Clusters with several MDTs: a dead MDT stops only its own part.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::{Client, OpenFile};
use sim::cluster::Death;
use sim::run::{OSTS, Settings};
use sim::scenario::{Scenario, play_on};
use tokio::time::{Instant, sleep};

/// The number of the server with MDT0001; number 0 has MDT0000.
const MDT1: usize = 1 + OSTS as usize;

fn with_three_mdts(seed: u64) -> Settings {
    Settings {
        mdts: 3,
        ..Settings::of(seed)
    }
}

async fn kill(s: &Scenario, server: usize) {
    let host = s.cluster.servers[server].clone();
    s.cluster.kill(&host, Death::PowerCut).await;
}

async fn start(s: &Scenario, server: usize) {
    let host = s.cluster.servers[server].clone();
    s.cluster.start(&host).await.unwrap();
}

/// Changes a file durably; returns the time that this took.
async fn write(s: &Scenario, file: &Arc<OpenFile>, data: &'static [u8]) -> Duration {
    let begin = Instant::now();
    s.on(0, async |mount: Arc<Client>| {
        mount.write(file, 0, Bytes::from_static(data)).await.unwrap();
        mount.fsync(file, true).await.unwrap();
    })
    .await;
    begin.elapsed()
}

#[test]
fn mdt0000_and_osts_recover_while_another_mdt_is_dead() {
    play_on(with_three_mdts(51), async |s| {
        let file = s.open(0, "file").await;
        write(&s, &file, b"first").await;
        kill(&s, MDT1).await;
        for server in 0..MDT1 {
            kill(&s, server).await;
            start(&s, server).await;
        }
        let took = write(&s, &file, b"second").await;
        assert!(took < Duration::from_secs(60), "{took:?}");
        // A new file needs objects that MDT0000 gets from the restarted OSTs.
        let new = s.open(0, "new").await;
        let took = write(&s, &new, b"third").await;
        assert!(took < Duration::from_secs(60), "{took:?}");
        start(&s, MDT1).await;
        let answers = s.on(0, async |mount: Arc<Client>| mount.mdt_space().await).await;
        assert_eq!(answers.len(), 3);
    });
}

#[test]
fn other_mdts_answer_clients_while_mdt0000_is_dead() {
    play_on(with_three_mdts(52), async |s| {
        let file = s.open(0, "file").await;
        write(&s, &file, b"first").await;
        kill(&s, 0).await;
        sleep(Duration::from_secs(30)).await;
        let answers = s.on(0, async |mount: Arc<Client>| mount.mdt_space().await).await;
        let indices: Vec<u32> = answers.iter().map(|(mdt, _)| *mdt).collect();
        assert_eq!(indices, [1, 2]);
        start(&s, 0).await;
        let took = write(&s, &file, b"second").await;
        assert!(took < Duration::from_secs(60), "{took:?}");
    });
}
