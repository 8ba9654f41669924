//! Scenarios written by hand.

#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used)]

mod dead_mdts;
mod fail_loc;
mod failed_disks;
mod mapped_pages;
mod newcomers;
mod remote_dirs;
mod remote_names;
mod unmounts;

use bytes::Bytes;
use client::{Cred, SetAttr};
use lnet::sim::FrameKind;
use sim::history::History;
use sim::kernel::KernelModel;
use sim::run::{Failure, in_simulation_within};
use sim::scenario::play;
use sim::workload::BLOCK;
use std::time::Duration;
use tokio::time::Instant;
use wire::Errno;

/// The portal of lock callbacks.
const LDLM_CB_REQUEST_PORTAL: u32 = 15;

#[test]
fn a_client_that_waits_for_a_lock_of_an_isolated_client_gets_it() {
    play(1, async |s| {
        let (a, b) = (s.open(0, "file").await, s.open(1, "file").await);
        // Client 0 has dirty data under its lock when its network fails.
        let data = Bytes::from_static(b"lost");
        s.on(0, async |mount| mount.write(&a, 0, data).await.unwrap())
            .await;
        s.isolate(0, true);
        let begin = Instant::now();
        let read = s.on(1, async |mount| mount.read(&b, 0, 4).await.unwrap()).await;
        assert!(read.concat().is_empty(), "client 0 never wrote its data back");
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
        s.isolate(0, false);
        let synced = s.on(0, async |mount| mount.fsync(&a, false).await).await;
        assert_eq!(synced, Err(Errno::EIO), "the loss is reported");
    });
}

#[test]
fn a_blocking_callback_that_the_network_loses_is_sent_again() {
    play(2, async |s| {
        let (a, b) = (s.open(0, "file").await, s.open(1, "file").await);
        let data = Bytes::from_static(b"kept");
        s.on(0, async |mount| mount.write(&a, 0, data).await.unwrap())
            .await;
        let (to, mut lost) = (s.host(0).nid, 0);
        s.lose(move |frame| {
            let callback = frame.kind == FrameKind::Put && frame.portal == LDLM_CB_REQUEST_PORTAL;
            let is_first = callback && frame.to == to && lost == 0;
            lost += u32::from(is_first);
            is_first
        });
        let begin = Instant::now();
        let read = s.on(1, async |mount| mount.read(&b, 0, 4).await.unwrap()).await;
        assert_eq!(read.concat(), b"kept");
        assert!(
            begin.elapsed() > Duration::from_secs(5),
            "the callback was not lost"
        );
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
        let synced = s.on(0, async |mount| mount.fsync(&a, false).await).await;
        assert_eq!(synced, Ok(()), "the client was not evicted");
    });
}

#[test]
fn a_reader_sees_the_mapped_page_of_a_client_that_truncates() {
    play(3, async |s| {
        let (a, b) = (s.open(0, "file").await, s.open(1, "file").await);
        let kernel = s.on(0, async |mount| KernelModel::attach(&mount)).await;
        let page = |byte| Bytes::from(vec![byte; BLOCK]);
        let stored = s
            .on(0, async |mount| {
                mount.write(&a, 0, page(1)).await.unwrap();
                kernel.store(&a, 0, page(2)).await
            })
            .await;
        assert_eq!(stored, Ok(()));
        // The kernel writes no page back until the truncate ends; the server revokes the lock
        // before the truncate needs it.
        kernel.begin_truncate(a.fid);
        let truncate = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let set = SetAttr {
                size: Some(BLOCK as u64),
                ..SetAttr::default()
            };
            s.on(0, async |mount| {
                mount.setattr(&Cred::root(), a.fid, &set, Some(&a)).await.unwrap();
                kernel.end_truncate(a.fid, Some(1));
            })
            .await;
        };
        let read = s.on(1, async |mount| mount.read(&b, 0, BLOCK).await.unwrap());
        let (read, ()) = tokio::join!(read, truncate);
        assert!(
            read.concat() == page(2),
            "the reader sees the data from before the store"
        );
    });
}

#[test]
fn a_reader_sees_the_mapped_page_of_a_client_whose_truncate_waits_for_the_mdt() {
    play(6, async |s| {
        let (a, b) = (s.open(0, "file").await, s.open(1, "file").await);
        let kernel = s.on(0, async |mount| KernelModel::attach(&mount)).await;
        let page = |byte| Bytes::from(vec![byte; BLOCK]);
        let stored = s.on(0, async |mount| {
            mount.write(&a, 0, page(1)).await.unwrap();
            kernel.store(&a, 0, page(2)).await
        });
        assert_eq!(stored.await, Ok(()));
        s.isolate_from_mds(0, true);
        let truncate = s.on(0, async |mount| {
            let set = SetAttr {
                size: Some(BLOCK as u64),
                ..SetAttr::default()
            };
            kernel.begin_truncate(a.fid);
            mount.setattr(&Cred::root(), a.fid, &set, Some(&a)).await.unwrap();
            kernel.end_truncate(a.fid, Some(1));
        });
        let read = s.on(1, async |mount| mount.read(&b, 0, BLOCK).await.unwrap());
        let heal = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            s.isolate_from_mds(0, false);
        };
        let (read, (), ()) = tokio::join!(read, truncate, heal);
        assert!(
            read.concat() == page(2),
            "the reader sees the data from before the store"
        );
    });
}

#[test]
fn a_thread_that_blocks_fails_with_the_last_event() {
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let result = in_simulation_within(Duration::from_millis(100), 1, async move || {
        History::default().note("about to block");
        // Lasts until the other end is dropped.
        blocked.recv().unwrap_err();
    });
    drop(unblock);
    assert!(
        matches!(&result, Err(Failure::Stuck(last)) if last == "about to block"),
        "{result:?}"
    );
}

#[test]
fn a_read_caches_no_byte_that_its_lock_does_not_cover() {
    play(5, async |s| {
        let file = s.open(0, "file").await;
        let (other, reader) = (s.open(1, "file").await, s.open(2, "file").await);
        let blocks = |byte, count: usize| Bytes::from(vec![byte; count * BLOCK]);
        let written = s.on(0, async |mount| mount.write(&file, 0, blocks(1, 2)).await);
        assert_eq!(written.await, Ok(2 * BLOCK));
        // While a truncate waits for the lock of an isolated reader, the server grants a read of
        // the block before the new end no more than that block. Both blocks are in one page.
        s.on(2, async |mount| mount.read(&reader, 0, BLOCK).await.unwrap())
            .await;
        s.isolate_from_osts(2, true);
        let truncate = s.on(1, async |mount| {
            let set = SetAttr {
                size: Some(BLOCK as u64),
                ..SetAttr::default()
            };
            mount.setattr(&Cred::root(), other.fid, &set, Some(&other)).await
        });
        let read = s.on(0, async |mount| {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let read = mount.read(&file, 0, BLOCK).await;
            s.isolate_from_osts(2, false);
            read
        });
        let (truncated, read) = tokio::join!(truncate, read);
        assert!(truncated.is_ok());
        assert_eq!(read.unwrap().concat(), blocks(1, 1));
        let appended = s.on(1, async |mount| {
            mount.write(&other, BLOCK as u64, blocks(2, 1)).await
        });
        assert_eq!(appended.await, Ok(BLOCK));
        let read = s.on(0, async |mount| mount.read(&file, BLOCK as u64, BLOCK).await);
        assert_eq!(read.await.unwrap().concat(), blocks(2, 1));
    });
}
