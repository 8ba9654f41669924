//! Faults of `fail_loc` in a whole cluster: calls only take longer, and each change takes place
//! once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::{Client, Cred};
use sim::scenario::{Scenario, play};
use tokio::time::Instant;
use wire::Errno;

/// Sets `fail_loc` and `fail_val` of a server.
fn inject(s: &Scenario, server: usize, loc: u32, val: u32) {
    let node = s.cluster.servers[server].node().unwrap();
    node.rpc().fail().set_val(val);
    node.rpc().fail().set_loc(loc).unwrap();
}

/// The value of `fail_loc` of a server.
fn fail_loc(s: &Scenario, server: usize) -> u32 {
    s.cluster.servers[server].node().unwrap().rpc().fail().loc()
}

/// Makes a directory; returns the time that this took.
async fn mkdir(s: &Scenario, name: &str) -> Result<Duration, Errno> {
    let begin = Instant::now();
    let made = s.on(0, async |mount: Arc<Client>| {
        let (cred, root) = (Cred::root(), mount.root());
        mount.mkdir(&cred, root, name.as_bytes(), 0o755).await.map(drop)
    });
    made.await.map(|()| begin.elapsed())
}

/// Writes a file on each OST and reads it on another client.
async fn write_and_read(s: &Scenario, name: &str) {
    let (a, b) = (s.open(0, name).await, s.open(1, name).await);
    s.on(0, async |mount: Arc<Client>| {
        mount.write(&a, 0, Bytes::from_static(b"data")).await.unwrap();
        mount.fsync(&a, false).await.unwrap();
    })
    .await;
    let read = s.on(1, async |mount: Arc<Client>| mount.read(&b, 0, 4).await.unwrap());
    assert_eq!(read.await.concat(), b"data");
}

#[test]
fn lost_request_and_lost_reply_are_repeated_and_executed_once() {
    play(41, async |s| {
        // OBD_FAIL_MDS_REINT_NET, OBD_FAIL_MDS_REINT_NET_REP
        for (i, loc) in [0x107, 0x119].into_iter().enumerate() {
            inject(&s, 0, loc, 0);
            let took = mkdir(&s, &format!("d{i}")).await.unwrap();
            assert!(took > Duration::from_secs(5), "{loc:#x} had no effect: {took:?}");
            assert_eq!(fail_loc(&s, 0), 0xc000_0000 | loc);
        }
        inject(&s, 0, 0, 0);
        assert!(mkdir(&s, "d2").await.unwrap() < Duration::from_secs(1));
        assert_eq!(mkdir(&s, "d1").await, Err(Errno::EEXIST));
    });
}

#[test]
fn skip_and_some_count_the_requests() {
    play(42, async |s| {
        // OBD_FAIL_MDS_REINT_CREATE for two requests, after two others.
        inject(&s, 0, 0x1000_010b, 2);
        let mut results = Vec::new();
        for i in 0..4 {
            results.push(mkdir(&s, &format!("some{i}")).await.err());
        }
        assert_eq!(results, [Some(Errno::ESTALE), Some(Errno::ESTALE), None, None]);
        inject(&s, 0, 0x2000_010b, 2);
        results.clear();
        for i in 0..4 {
            results.push(mkdir(&s, &format!("skip{i}")).await.err());
        }
        assert_eq!(results, [None, None, Some(Errno::ESTALE), Some(Errno::ESTALE)]);
    });
}

#[test]
fn lost_bulk_transfers_and_callbacks_are_repeated() {
    play(43, async |s| {
        // OBD_FAIL_PTLRPC_BULK_GET_NET and _PUT_NET, OBD_FAIL_OST_BRW_NET,
        // OBD_FAIL_OST_LDLM_REPLY_NET
        for (i, loc) in [0x8000_0503, 0x8000_0504, 0x8000_020a, 0x8000_0213]
            .into_iter()
            .enumerate()
        {
            (1..=2).for_each(|ost| inject(&s, ost, loc, 0));
            write_and_read(&s, &format!("f{i}")).await;
        }
        (1..=2).for_each(|ost| inject(&s, ost, 0, 0));
        // The client loses blocking callbacks: OBD_FAIL_LDLM_BL_CALLBACK_NET
        let host = s.host(0).node().unwrap();
        host.rpc().fail().set_loc(0x8000_0305).unwrap();
        write_and_read(&s, "callback").await;
    });
}

#[test]
fn requests_fail_or_wait_as_the_number_says() {
    play(44, async |s| {
        // The first change of a client also needs a sequence of FIDs.
        mkdir(&s, "first").await.unwrap();
        // OBD_FAIL_PTLRPC_PAUSE_REQ, milliseconds
        inject(&s, 0, 0x50a, 3000);
        let took = mkdir(&s, "paused").await.unwrap();
        assert!(
            took >= Duration::from_secs(3) && took < Duration::from_secs(5),
            "{took:?}"
        );
        inject(&s, 0, 0, 0);
        // OBD_FAIL_OST_ENOSPC
        let file = s.open(0, "full").await;
        (1..=2).for_each(|ost| inject(&s, ost, 0x215, 0));
        let written = s.on(0, async |mount: Arc<Client>| {
            mount.write(&file, 0, Bytes::from_static(b"data")).await?;
            mount.fsync(&file, false).await
        });
        assert_eq!(written.await, Err(Errno::ENOSPC));
    });
}
