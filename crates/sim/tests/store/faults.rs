//! Full and failing disks, and handles of a node that ended.

use bytes::Bytes;
use osd::{OsdError, SetAttr, SpacePurpose, Stores};
use sim::store::{DiskConfig, SimDisk};
use wire::Errno;

use crate::{Crash, Node, fid, millis, put, simulate};

const MIB: u64 = 1 << 20;

async fn write(node: &Node, oid: u32, offset: u64, len: usize) -> Result<(), OsdError> {
    let data = vec![Bytes::from(vec![7; len])];
    node.objects
        .write(fid(oid), offset, data, SetAttr::default())
        .await
}

#[test]
fn full_disk_refuses_growth_until_space_is_free() {
    simulate(async {
        let config = DiskConfig {
            capacity: 4 * MIB,
            ..DiskConfig::default()
        };
        let node = Node::start(SimDisk::new(config, 1)).await;
        let space = node.index.space().clone();
        let mut written = 0;
        while space.check(SpacePurpose::Growth).is_ok() {
            match write(&node, 1, written, 256 << 10).await {
                Ok(()) => written += 256 << 10,
                Err(OsdError::NoSpace) => break,
                Err(e) => panic!("{e}"),
            }
        }
        assert!((3 * MIB..4 * MIB).contains(&written), "{written}");
        // The reserve still serves upkeep.
        node.index.apply(put("a", "1")).unwrap();
        node.objects.sync(None).await.unwrap();
        // After a restart the used space is the same; the hole uses none.
        let none = SetAttr::default();
        node.objects.punch(fid(1), 0, MIB, none).await.unwrap();
        node.objects.sync(None).await.unwrap();
        let used = node.disk.used_bytes();
        assert!(used < 3 * MIB + MIB / 2, "{used}");
        let node = node.crash_and_start(Crash::PowerCut).await;
        assert_eq!(node.disk.used_bytes(), used);
        assert!(node.objects.destroy(fid(1)).await.unwrap());
        assert!(node.disk.used_bytes() < MIB);
        write(&node, 2, 0, MIB as usize).await.unwrap();
        // A smaller disk is full at once, and too small for a start.
        node.disk.set_capacity(MIB / 2);
        let space = node.index.space();
        assert!(matches!(
            space.check(SpacePurpose::Upkeep),
            Err(OsdError::NoSpace)
        ));
        assert!(matches!(node.index.apply(put("b", "1")), Err(OsdError::NoSpace)));
        node.objects.sync(None).await.unwrap();
        let disk = node.crash(Crash::PowerCut);
        let opened = disk.stores().open_index().await;
        assert!(matches!(opened.err(), Some(OsdError::Full { .. })));
        disk.set_capacity(4 * MIB);
        assert_eq!(
            Node::start(disk).await.index.get(b"a").await.unwrap().unwrap(),
            "1"
        );
    });
}

#[test]
fn failed_commit_is_final() {
    simulate(async {
        for seed in 0..20 {
            let node = Node::new(seed).await;
            node.index.apply(put("a", "1")).unwrap();
            node.index.sync().await.unwrap();
            let committed = node.index.transactions().committed();
            node.disk.set_failing(true);
            let transaction = node.index.transactions().begin();
            let mut batch = put("b", "2");
            batch.transno = Some(transaction.transno());
            node.index.apply(batch).unwrap();
            assert!(matches!(
                node.index.sync().await,
                Err(OsdError::SyncFailed { .. })
            ));
            node.disk.set_failing(false);
            assert!(matches!(
                node.index.sync().await,
                Err(OsdError::SyncFailed { .. })
            ));
            assert!(matches!(
                node.index.apply(put("c", "3")),
                Err(OsdError::ReadOnly { .. })
            ));
            assert!(!node.index.space().failure().is_empty());
            assert_eq!(node.index.transactions().committed(), committed);
            assert_eq!(node.index.get(b"b").await.unwrap().unwrap(), "2");
            let node = node.crash_and_start(Crash::ProcessKill).await;
            assert_eq!(node.index.get(b"a").await.unwrap().unwrap(), "1");
            assert!(node.index.space().failure().is_empty());
            node.index.apply(put("c", "3")).unwrap();
            node.index.sync().await.unwrap();
        }
    });
}

#[test]
fn failed_sync_of_an_object_is_final() {
    simulate(async {
        let node = Node::new(1).await;
        write(&node, 1, 0, 100).await.unwrap();
        node.objects.sync(None).await.unwrap();
        write(&node, 1, 50, 100).await.unwrap();
        node.disk.set_failing(true);
        assert!(node.objects.sync(Some(fid(1))).await.is_err());
        node.disk.set_failing(false);
        assert!(matches!(
            node.objects.sync(None).await,
            Err(OsdError::SyncFailed { .. })
        ));
        assert!(matches!(
            write(&node, 1, 0, 10).await,
            Err(OsdError::SyncFailed { .. })
        ));
        // Readers see all data until the power is cut.
        assert_eq!(node.objects.attr(fid(1)).await.unwrap().unwrap().size, 150);
        let node = node.crash_and_start(Crash::PowerCut).await;
        let size = node.objects.attr(fid(1)).await.unwrap().unwrap().size;
        assert!([100, 150].contains(&size), "{size}");
        write(&node, 1, 0, 10).await.unwrap();
        node.objects.sync(None).await.unwrap();
    });
}

#[test]
fn lost_end_of_an_object_gives_eio() {
    simulate(async {
        let node = Node::new(1).await;
        write(&node, 1, 0, 10_000).await.unwrap();
        node.objects.sync(None).await.unwrap();
        // The next commit writes the size in the object's record.
        node.index.sync().await.unwrap();
        let disk = node.crash(Crash::PowerCut);
        disk.damage_object(fid(1), 9_999);
        let node = Node::start(disk).await;
        let read = node.objects.read(fid(1), 0, 10).await.unwrap_err();
        assert!(matches!(read, OsdError::DamagedObject { .. }), "{read}");
        assert_eq!(read.errno(), Errno::EIO);
        assert_eq!(write(&node, 1, 0, 10).await.unwrap_err().errno(), Errno::EIO);
        // A truncation removes the damage.
        let truncated = node.objects.punch(fid(1), 9_999, u64::MAX, SetAttr::default());
        truncated.await.unwrap();
        write(&node, 1, 0, 10).await.unwrap();
    });
}

#[test]
fn handles_are_dead_after_a_crash() {
    simulate(async {
        for crash in [Crash::PowerCut, Crash::ProcessKill] {
            let node = Node::new(1).await;
            node.index.apply(put("a", "1")).unwrap();
            write(&node, 1, 0, 10).await.unwrap();
            node.objects.sync(None).await.unwrap();
            let (index, objects) = (node.index.clone(), node.objects.clone());
            let stores = node.disk.stores();
            let disk = node.crash(crash);
            let digest = disk.digest();
            assert!(matches!(index.get(b"a").await, Err(OsdError::Stopping)));
            assert!(matches!(index.apply(put("b", "1")), Err(OsdError::Stopping)));
            assert!(matches!(index.sync().await, Err(OsdError::Stopping)));
            let none = SetAttr::default();
            objects
                .write(fid(1), 0, vec![Bytes::from_static(b"x")], none)
                .await
                .unwrap_err();
            objects.read(fid(1), 0, 10).await.unwrap_err();
            objects.destroy(fid(1)).await.unwrap_err();
            objects.sync(None).await.unwrap_err();
            assert!(matches!(
                stores.open_index().await.err(),
                Some(OsdError::Stopping)
            ));
            drop((index, objects));
            assert_eq!(disk.digest(), digest);
            let node = Node::start(disk).await;
            assert_eq!(node.objects.attr(fid(1)).await.unwrap().unwrap().size, 10);
        }
    });
}

#[test]
fn sync_that_a_crash_interrupts_does_not_succeed() {
    simulate(async {
        let node = Node::new(1).await;
        node.disk.set_delay(millis(100));
        node.index.apply(put("a", "1")).unwrap();
        let index = node.index.clone();
        let sync = cpt::spawn(async move { index.sync().await });
        tokio::time::sleep(millis(50)).await;
        // The scope is not killed, so the node's tasks still run.
        node.disk.power_cut();
        assert!(matches!(sync.await.unwrap(), Err(OsdError::Stopping)));
    });
}

#[test]
fn target_has_run_once_a_record_is_on_disk() {
    simulate(async {
        let node = Node::new(1).await;
        let boot = node.disk.stores().boot_id();
        assert!(!node.disk.stores().has_run());
        node.index.apply(put("a", "1")).unwrap();
        assert!(!node.disk.stores().has_run());
        node.index.sync().await.unwrap();
        assert!(node.disk.stores().has_run());
        let node = node.crash_and_start(Crash::ProcessKill).await;
        assert_eq!(node.disk.stores().boot_id(), boot);
        let node = node.crash_and_start(Crash::PowerCut).await;
        assert_ne!(node.disk.stores().boot_id(), boot);
        assert!(node.disk.stores().has_run());
    });
}

#[test]
fn index_opened_read_only_changes_nothing() {
    simulate(async {
        let node = Node::new(1).await;
        node.index.apply(put("a", "1")).unwrap();
        node.index.sync().await.unwrap();
        let disk = node.crash(Crash::PowerCut);
        let digest = disk.digest();
        let index = disk.stores().open_index_read_only().await.unwrap();
        assert_eq!(index.get(b"a").await.unwrap().unwrap(), "1");
        assert!(matches!(index.apply(put("a", "2")), Err(OsdError::Invalid(_))));
        index.sync().await.unwrap();
        drop(index);
        assert_eq!(disk.digest(), digest);
    });
}
