//! Data of files, as one or two mounts see it.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use client::{Client, Cred, Fallocate, OpenFile, OpenFlags, Seek, SetAttr};
use std::sync::Arc;
use std::time::Duration;
use testkit::Cluster;
use wire::{Errno, Fid, OST_READ, OST_WRITE};

const RW: OpenFlags = OpenFlags::READ_WRITE;

async fn create(client: &Client, name: &str) -> (Fid, Arc<OpenFile>) {
    let (found, file) = client
        .create(&Cred::root(), client.root(), name.as_bytes(), 0o644, RW)
        .await
        .unwrap();
    (found.attr.fid, file)
}

async fn read(client: &Client, file: &OpenFile, offset: u64, len: usize) -> Vec<u8> {
    client.read(file, offset, len).await.unwrap().concat()
}

async fn size(client: &Client, fid: Fid) -> u64 {
    client.getattr(&Cred::root(), fid).await.unwrap().attr.size
}

fn pattern(len: usize, salt: u8) -> Bytes {
    (0..len)
        .map(|i| ((i as u64 * 2_654_435_761) >> 7) as u8 ^ salt)
        .collect::<Vec<u8>>()
        .into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_is_read_by_another_mount_at_once() {
    let cluster = Cluster::start(2).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let (fid, file) = create(&mount_a, "f").await;
    let data = pattern(3_000_000, 1);
    assert_eq!(mount_a.write(&file, 0, data.clone()).await, Ok(data.len()));
    let other = mount_b.open(&Cred::root(), fid, RW).await.unwrap();
    assert_eq!(size(&mount_b, fid).await, 3_000_000);
    assert_eq!(read(&mount_b, &other, 0, 4_000_000).await, data);
    mount_b
        .write(&other, 1_000_000, Bytes::from_static(b"changed"))
        .await
        .unwrap();
    assert_eq!(
        read(&mount_a, &file, 999_999, 9).await,
        [&data[999_999..1_000_000], b"changed", &data[1_000_007..1_000_008]].concat()
    );
    for (client, f) in [(&mount_a, &file), (&mount_b, &other)] {
        client.release(f).await.unwrap();
        client.umount().await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_without_objects_keeps_its_size_when_objects_are_allocated() {
    let cluster = Cluster::start(2).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let truncate = async |client: &Client, fid: Fid, size: u64| {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        client.setattr(&root, fid, &set, None).await.unwrap().attr.size
    };
    let created = mount_a
        .mknod(&root, mount_a.root(), b"f", 0o100_644, 0)
        .await
        .unwrap();
    let fid = created.attr.fid;
    assert_eq!(truncate(&mount_a, fid, 3_000_000).await, 3_000_000);
    assert_eq!(truncate(&mount_b, fid, 2_000_000).await, 2_000_000);
    assert_eq!(
        (size(&mount_a, fid).await, size(&mount_b, fid).await),
        (2_000_000, 2_000_000)
    );
    let read_only = mount_b.open(&root, fid, OpenFlags::READ).await.unwrap();
    assert!(mount_b.getxattr(&root, fid, b"trusted.lov").await.is_err());
    assert_eq!(read(&mount_b, &read_only, 1_999_990, 100).await, [0; 10]);
    assert!(read(&mount_b, &read_only, 2_000_000, 100).await.is_empty());
    assert_eq!(mount_b.seek(&read_only, Seek::Hole, 5).await, Ok(5));
    assert_eq!(mount_b.seek(&read_only, Seek::Data, 5).await, Err(Errno::ENXIO));
    assert_eq!(
        mount_b.seek(&read_only, Seek::Hole, 2_000_000).await,
        Err(Errno::ENXIO)
    );

    let file = mount_a.open(&root, fid, RW).await.unwrap();
    assert!(mount_a.getxattr(&root, fid, b"trusted.lov").await.is_ok());
    assert_eq!(
        (size(&mount_a, fid).await, size(&mount_b, fid).await),
        (2_000_000, 2_000_000)
    );
    assert_eq!(read(&mount_a, &file, 1_999_990, 100).await, [0; 10]);
    mount_a
        .write(&file, 1_999_995, Bytes::from_static(b"0123456789"))
        .await
        .unwrap();
    assert_eq!(
        read(&mount_b, &read_only, 1_999_990, 100).await,
        b"\0\0\0\0\x000123456789"
    );
    assert_eq!(truncate(&mount_b, fid, 4_000_000).await, 4_000_000);
    assert_eq!(size(&mount_a, fid).await, 4_000_000);
    for (client, f) in [(&mount_a, &file), (&mount_b, &read_only)] {
        client.release(f).await.unwrap();
        client.umount().await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unwritten_data_counts_as_blocks_on_every_mount() {
    let cluster = Cluster::start(2).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let blocks = async |client: &Client, fid: Fid| client.getattr(&root, fid).await.unwrap().attr.blocks;
    let both = async |fid: Fid| (blocks(&mount_a, fid).await, blocks(&mount_b, fid).await);
    let (small, file) = create(&mount_a, "small").await;
    mount_a.write(&file, 0, pattern(100, 1)).await.unwrap();
    assert_eq!(both(small).await, (8, 8));
    mount_a.write(&file, 50, pattern(9000, 2)).await.unwrap();
    assert_eq!(both(small).await, (24, 24));
    let (sparse, hole) = create(&mount_a, "sparse").await;
    mount_a.write(&hole, 1 << 30, pattern(1, 1)).await.unwrap();
    assert_eq!(both(sparse).await, (8, 8));
    mount_a.fsync(&file, false).await.unwrap();
    mount_a.fsync(&hole, false).await.unwrap();
    assert_eq!(blocks(&mount_b, small).await, 24);
    // An overwrite of data on disk adds no blocks.
    mount_a.write(&file, 0, pattern(9050, 3)).await.unwrap();
    assert_eq!(both(small).await, (24, 24));
    for f in [&file, &hole] {
        mount_a.release(f).await.unwrap();
    }
    mount_a.umount().await;
    mount_b.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_glimpse_returns_the_size_of_unwritten_data() {
    let cluster = Cluster::start(1).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let (fid, file) = create(&mount_a, "f").await;
    mount_a.write(&file, 0, pattern(100, 0)).await.unwrap();
    assert_eq!(size(&mount_b, fid).await, 100);
    mount_a.write(&file, 100, pattern(100, 0)).await.unwrap();
    assert_eq!(size(&mount_b, fid).await, 200);
    mount_a.umount().await;
    mount_b.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_appends_of_two_mounts_lose_no_line() {
    let cluster = Cluster::start(2).await;
    let mounts = [cluster.mount().await, cluster.mount().await];
    let (fid, file) = create(&mounts[0], "log").await;
    mounts[0].release(&file).await.unwrap();
    let mut tasks = Vec::new();
    for (i, client) in mounts.iter().cloned().enumerate() {
        tasks.push(tokio::spawn(async move {
            let append = OpenFlags { append: true, ..RW };
            let file = client.open(&Cred::root(), fid, append).await.unwrap();
            for n in 0..50 {
                let line = format!("mount {i} line {n:02}\n");
                client.write(&file, 0, Bytes::from(line)).await.unwrap();
            }
            client.release(&file).await.unwrap();
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let file = mounts[1].open(&Cred::root(), fid, OpenFlags::READ).await.unwrap();
    let text = String::from_utf8(read(&mounts[1], &file, 0, 1 << 20).await).unwrap();
    for i in 0..2 {
        let lines: Vec<&str> = text
            .lines()
            .filter(|l| l.starts_with(&format!("mount {i}")))
            .collect();
        assert_eq!(lines.len(), 50);
        assert!(lines.is_sorted(), "each mount's lines are in its order");
    }
    for client in &mounts {
        client.umount().await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncate_is_seen_by_both_mounts() {
    let cluster = Cluster::start(1).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let (fid, file) = create(&mount_a, "f").await;
    mount_a.write(&file, 0, pattern(100_000, 3)).await.unwrap();
    let cut = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    mount_b
        .setattr(&Cred::root(), fid, &cut(50_001), None)
        .await
        .unwrap();
    assert_eq!(size(&mount_a, fid).await, 50_001);
    assert_eq!(
        read(&mount_a, &file, 0, 100_000).await,
        pattern(100_000, 3)[..50_001]
    );
    mount_a
        .setattr(&Cred::root(), fid, &cut(60_000), Some(&file))
        .await
        .unwrap();
    let mut expected = pattern(100_000, 3)[..50_001].to_vec();
    expected.resize(60_000, 0);
    let other = mount_b.open(&Cred::root(), fid, OpenFlags::READ).await.unwrap();
    assert_eq!(read(&mount_b, &other, 0, 100_000).await, expected);
    mount_a.umount().await;
    mount_b.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seeks_find_holes_and_a_punched_range_reads_as_zeros() {
    let cluster = Cluster::start(1).await;
    let mount_a = cluster.mount().await;
    let (fid, file) = create(&mount_a, "f").await;
    mount_a.write(&file, 1 << 20, pattern(1 << 20, 5)).await.unwrap();
    assert_eq!(mount_a.seek(&file, Seek::Data, 0).await, Ok(1 << 20));
    assert_eq!(mount_a.seek(&file, Seek::Hole, 1 << 20).await, Ok(2 << 20));
    assert_eq!(mount_a.seek(&file, Seek::Data, 2 << 20).await, Err(Errno::ENXIO));
    mount_a
        .fallocate(&file, Fallocate::PunchHole, (1 << 20) + 65536, 65536)
        .await
        .unwrap();
    assert_eq!(
        read(&mount_a, &file, (1 << 20) + 65536, 65536).await,
        vec![0; 65536]
    );
    assert_eq!(size(&mount_a, fid).await, 2 << 20);
    mount_a.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn direct_and_cached_access_are_coherent() {
    let cluster = Cluster::start(2).await;
    let mount_a = cluster.mount().await;
    let (fid, file) = create(&mount_a, "f").await;
    mount_a.write(&file, 0, pattern(200_000, 1)).await.unwrap();
    let direct = mount_a
        .open(&Cred::root(), fid, OpenFlags { direct: true, ..RW })
        .await
        .unwrap();
    assert_eq!(read(&mount_a, &direct, 0, 300_000).await, pattern(200_000, 1));
    mount_a
        .write(&direct, 4096, Bytes::from(vec![9; 8192]))
        .await
        .unwrap();
    assert_eq!(
        read(&mount_a, &file, 4095, 3).await,
        [pattern(200_000, 1)[4095], 9, 9]
    );
    mount_a.umount().await;
    cluster.stop().await;
}

/// A read gets the bytes and the size of a file one after the other. A write or truncate on the
/// same mount in between must not turn the difference into zeros.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_during_changes_of_the_same_mount_returns_no_false_zeros() {
    let cluster = Cluster::start(2).await;
    let mount_a = cluster.mount().await;
    for (name, direct, append) in [
        ("truncated", false, false),
        ("truncated-direct", true, false),
        ("log", false, true),
        ("log-direct", true, true),
    ] {
        let (fid, file) = create(&mount_a, name).await;
        mount_a.release(&file).await.unwrap();
        let writer = tokio::spawn({
            let mount_a = mount_a.clone();
            async move {
                let flags = OpenFlags { append, ..RW };
                let file = mount_a.open(&Cred::root(), fid, flags).await.unwrap();
                let empty = SetAttr {
                    size: Some(0),
                    ..SetAttr::default()
                };
                for _ in 0..1500 {
                    if !append {
                        mount_a
                            .setattr(&Cred::root(), fid, &empty, Some(&file))
                            .await
                            .unwrap();
                    }
                    mount_a
                        .write(&file, 0, Bytes::from(vec![b'x'; 3000]))
                        .await
                        .unwrap();
                }
                mount_a.release(&file).await.unwrap();
            }
        });
        let flags = OpenFlags {
            direct,
            ..OpenFlags::READ
        };
        let file = mount_a.open(&Cred::root(), fid, flags).await.unwrap();
        let mut at = 0;
        while !writer.is_finished() {
            let bytes = read(&mount_a, &file, at, 1 << 20).await;
            assert!(
                bytes.iter().all(|&byte| byte == b'x'),
                "{name}: zeros that no write contained"
            );
            at += if append { bytes.len() as u64 } else { 0 };
        }
        writer.await.unwrap();
        mount_a.release(&file).await.unwrap();
    }
    mount_a.umount().await;
    cluster.stop().await;
}

/// A Lustre server would return the rest of a block as zeros.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_direct_read_requests_no_bytes_beyond_the_end() {
    let cluster = Cluster::start(1).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let (fid, file) = create(&mount_a, "f").await;
    mount_a.write(&file, 0, pattern(100, 1)).await.unwrap();
    let flags = OpenFlags { direct: true, ..RW };
    let direct = mount_b.open(&Cred::root(), fid, flags).await.unwrap();
    assert_eq!(read(&mount_b, &direct, 0, 4096).await, pattern(100, 1));
    cluster.rpc.faults().refuse_requests(OST_READ);
    assert!(read(&mount_b, &direct, 100, 4096).await.is_empty());
    assert!(read(&mount_b, &direct, 4096, 4096).await.is_empty());
    assert!(
        mount_b.read(&direct, 99, 4096).await.is_err(),
        "the existing bytes are requested"
    );
    mount_a.umount().await;
    mount_b.umount().await;
    cluster.stop().await;
}

/// The client disconnects from an idle OST, returns its grant, and reconnects for the next request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_target_is_disconnected_and_reconnected() {
    let cluster = Cluster::start(1).await;
    let params = params::Registry::default();
    let client = cluster.mount_with(|o| o.params = params.clone()).await;
    let (fid, file) = create(&client, "f").await;
    let grant = || params.get("osc.*.cur_grant_bytes")[0].1.parse::<u64>().unwrap();
    for round in 0..3 {
        let data = pattern(100_000, round);
        assert_eq!(client.write(&file, 0, data.clone()).await, Ok(data.len()));
        client.fsync(&file, false).await.unwrap();
        assert!(grant() > 0);
        params.set("osc.*.idle_timeout", "1").unwrap();
        params.set("ldlm.namespaces.*-osc-*.lru_size", "clear").unwrap();
        let disconnected = async {
            while grant() > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), disconnected)
            .await
            .unwrap();
        // Requests for space and data work as before.
        if round == 1 {
            assert!(client.statfs().await.unwrap().blocks > 0);
        }
        assert_eq!(read(&client, &file, 0, data.len()).await, data);
        assert_eq!(size(&client, fid).await, 100_000);
    }
    client.release(&file).await.unwrap();
    client.umount().await;
    cluster.stop().await;
}

/// The removal of a file cancels the locks on its data, so the targets need not revoke them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removing_a_file_cancels_the_locks_on_its_data() {
    let cluster = Cluster::start(2).await;
    let params = params::Registry::default();
    let client = cluster.mount_with(|o| o.params = params.clone()).await;
    let count = |which: &str| -> u64 {
        let counts = params.get(&format!("ldlm.namespaces.*-osc-*.{which}"));
        counts.iter().map(|(_, n)| n.parse::<u64>().unwrap()).sum()
    };
    let locks = || count("lock_count");
    let (root, dir) = (Cred::root(), client.root());
    for i in 0..8u8 {
        for name in ["unlinked", "replaced", "new"] {
            let (_, file) = create(&client, &format!("{name}{i}")).await;
            client.write(&file, 0, pattern(5000, i)).await.unwrap();
            client.fsync(&file, false).await.unwrap();
            client.release(&file).await.unwrap();
        }
    }
    assert_eq!(locks(), 24);
    // A write releases its lock a moment after its end. The removal of a file does not cancel a
    // lock in use.
    let all_unused = async {
        while count("lock_unused_count") < 24 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all_unused)
        .await
        .unwrap();
    for i in 0..8 {
        let [unlinked, replaced, new] =
            ["unlinked", "replaced", "new"].map(|name| format!("{name}{i}").into_bytes());
        client.unlink(&root, dir, &unlinked).await.unwrap();
        client.rename(&root, (dir, &new), (dir, &replaced)).await.unwrap();
    }
    // The client cancels the locks at once. If a close is still in flight to the MDT, the target
    // revokes the lock when it destroys the object.
    let cancelled = async {
        while locks() > 8 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), cancelled)
        .await
        .unwrap();
    assert_eq!(locks(), 8);
    // A file that is open keeps its data and its lock.
    let (fid, file) = create(&client, "open").await;
    client.write(&file, 0, pattern(5000, 9)).await.unwrap();
    client.unlink(&root, dir, b"open").await.unwrap();
    assert_eq!(locks(), 9);
    assert_eq!(read(&client, &file, 0, 5000).await, pattern(5000, 9));
    assert_eq!(size(&client, fid).await, 5000);
    client.release(&file).await.unwrap();
    client.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_data_of_all_targets_stays_within_the_mounts_limit() {
    const LEN: usize = 4 << 20;
    let cluster = Cluster::start(2).await;
    let params = params::Registry::default();
    let client = cluster.mount_with(|o| o.params = params.clone()).await;
    params.set("llite.*.max_cached_mb", "32").unwrap();
    let used = || {
        let shown = &params.get("llite.*.max_cached_mb")[0].1;
        let line = shown.lines().find_map(|l| l.strip_prefix("used_mb: ")).unwrap();
        line.parse::<u64>().unwrap()
    };
    let mut files = Vec::new();
    for i in 0..16u8 {
        let (_, file) = create(&client, &format!("f{i}")).await;
        assert_eq!(client.write(&file, 0, pattern(LEN, i)).await, Ok(LEN));
        client.fsync(&file, false).await.unwrap();
        files.push(file);
    }
    for _ in 0..3 {
        for (i, file) in (0..).zip(&files) {
            assert!(read(&client, file, 0, LEN).await == pattern(LEN, i), "file {i}");
            assert!(used() <= 32 + 8, "{} MiB", used());
        }
    }
    for file in &files {
        client.release(file).await.unwrap();
    }
    client.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_operations_by_two_mounts_match_a_file_in_memory() {
    for seed in 1..4u64 {
        let cluster = Cluster::start(2).await;
        let mounts = [cluster.mount().await, cluster.mount().await];
        let (fid, first) = create(&mounts[0], "f").await;
        let second = mounts[1].open(&Cred::root(), fid, RW).await.unwrap();
        let files = [first, second];
        let mut model: Vec<u8> = Vec::new();
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut random = move |below: u64| rng.u64(..below);
        for step in 0..120u32 {
            let mount_index = random(2) as usize;
            let (client, f) = (&mounts[mount_index], &files[mount_index]);
            let (offset, len) = (random(300_000), random(100_000) as usize + 1);
            let at = offset as usize;
            match random(8) {
                0..3 => {
                    let data = pattern(len, step as u8);
                    client.write(f, offset, data.clone()).await.unwrap();
                    model.resize(model.len().max(at + len), 0);
                    model[at..at + len].copy_from_slice(&data);
                }
                3..6 => {
                    let expected = model
                        .get(at.min(model.len())..(at + len).min(model.len()))
                        .unwrap_or_default();
                    assert!(
                        read(client, f, offset, len).await == expected,
                        "seed {seed} step {step}: read {offset}+{len}"
                    );
                }
                6 => {
                    let cut = SetAttr {
                        size: Some(offset),
                        ..SetAttr::default()
                    };
                    client.setattr(&Cred::root(), fid, &cut, Some(f)).await.unwrap();
                    model.resize(at, 0);
                }
                _ => client.fsync(f, false).await.unwrap(),
            }
            let seen = size(&mounts[1 - mount_index], fid).await;
            assert_eq!(seen, model.len() as u64, "seed {seed} step {step}: size");
        }
        for client in &mounts {
            client.umount().await;
        }
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lazy_close_does_not_wait_for_the_data() {
    let cluster = Cluster::start(1).await;
    let (lazy, other) = (
        cluster.mount_with(|o| o.lazy_close = true).await,
        cluster.mount().await,
    );
    cluster.rpc.faults().lose_requests(OST_WRITE, u32::MAX);
    let (fid, file) = create(&lazy, "f").await;
    lazy.write(&file, 0, pattern(5000, 1)).await.unwrap();
    let close = async {
        lazy.write_back(&file).await?;
        lazy.release(&file).await
    };
    let closed = tokio::time::timeout(Duration::from_secs(180), close).await;
    closed.expect("the close does not wait").unwrap();
    cluster.rpc.faults().clear_losses_and_refusals();
    let by_other = other.open(&Cred::root(), fid, RW).await.unwrap();
    assert_eq!(read(&other, &by_other, 0, 9000).await, pattern(5000, 1)[..]);
    other.release(&by_other).await.unwrap();
    lazy.umount().await;
    other.umount().await;
    cluster.stop().await;
}
