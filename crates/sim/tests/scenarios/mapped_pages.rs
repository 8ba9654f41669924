//! Dirty pages of mappings of a file on the MDT, whose write-back under a revoked lock takes longer
//! than the client waits for the kernel.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::{Client, Cred, OpenFile, OpenFlags};
use lnet::sim::FrameKind;
use sim::kernel::KernelModel;
use sim::run::layout_on_mdt;
use sim::scenario::{Scenario, play};
use sim::workload::BLOCK;
use tokio::time::Instant;

/// The portal of reads and writes on an MDT.
const MDS_IO_PORTAL: u32 = 13;

fn block(byte: u8) -> Bytes {
    Bytes::from(vec![byte; BLOCK])
}

/// Creates a file on the MDT on client 0.
async fn create(s: &Scenario, name: &str) -> Arc<OpenFile> {
    let created = s.on(0, async |mount: Arc<Client>| {
        let (cred, place) = (Cred::root(), (mount.root(), name.as_bytes()));
        mount
            .create_with(&cred, place, 0o644, OpenFlags::READ_WRITE, layout_on_mdt())
            .await
            .map(|(_, file)| file)
    });
    created.await.unwrap()
}

/// Stores two pages through a mapping of client 0, and reads them on client 1 while the network
/// loses the first write of a page. `opened_first`: client 1 opens the file before the stores.
async fn store_and_read(s: &Scenario, name: &str, opened_first: bool) {
    let a = create(s, name).await;
    let kernel = s.on(0, async |mount| KernelModel::attach(&mount)).await;
    let opened = match opened_first {
        true => Some(s.open(1, name).await),
        false => None,
    };
    let pages = [0, 2];
    for page in pages {
        let stored = s.on(0, async |_| kernel.store(&a, page, block(page + 1)).await);
        assert_eq!(stored.await, Ok(()));
    }
    let (from, mut lost) = (s.host(0).nid, 0);
    s.lose(move |frame| {
        let is_write = frame.kind == FrameKind::Put && frame.portal == MDS_IO_PORTAL;
        let is_first = is_write && frame.from == from && lost == 0;
        lost += u32::from(is_first);
        is_first
    });
    let begin = Instant::now();
    let b = match opened {
        Some(file) => file,
        None => s.open(1, name).await,
    };
    for page in pages {
        let at = u64::from(page) * BLOCK as u64;
        let read = s.on(1, async |mount| mount.read(&b, at, BLOCK).await.unwrap());
        assert!(
            read.await.concat() == block(page + 1),
            "the reader sees page {page} from before the store"
        );
    }
    let took = begin.elapsed();
    assert!(took > Duration::from_secs(2), "no write was lost: {took:?}");
    assert!(took < Duration::from_secs(30), "{took:?}");
    let synced = s.on(0, async |mount| mount.fsync(&a, false).await).await;
    assert_eq!(synced, Ok(()), "no data was lost, and the client was not evicted");
}

#[test]
fn a_reader_sees_all_mapped_pages_of_a_client_with_a_slow_write_back() {
    play(51, async |s| store_and_read(&s, "opened before", true).await);
    play(52, async |s| store_and_read(&s, "opened after", false).await);
}
