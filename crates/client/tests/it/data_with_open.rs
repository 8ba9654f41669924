//! Data on the MDT that comes with the reply to an open: counts of requests, and reads that see the
//! changes of other mounts, also after lost replies and restarts.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use bytes::Bytes;
use client::{Client, Cred, OpenFile, OpenFlags};
use wire::{Fid, LDLM_ENQUEUE};

use crate::data_on_mdt::{Mounts, ON_MDT, RW, SOON, layout, pattern};
use testkit::Cluster;

const READ: OpenFlags = OpenFlags::READ;
/// The most data in a reply.
const WITH_OPEN_MAX: usize = 64 << 10;

/// The services of the MDT that open, read and write files. (A client also asks once for the
/// location of a file.)
const SERVICES: [&str; 3] = ["mdt", "mdt_io", "mdt_readpage"];

/// Requests that clients have sent to these services, once the services are idle.
async fn requests(cluster: &Cluster) -> u64 {
    loop {
        let stats = cluster.rpc.stats();
        let mdt: Vec<_> = stats.iter().filter(|s| SERVICES.contains(&s.name)).collect();
        if mdt.iter().all(|s| s.active == 0 && s.queued == 0) {
            return mdt.iter().map(|s| s.handled).sum();
        }
        tokio::task::yield_now().await;
    }
}

async fn open(client: &Client, fid: Fid) -> Arc<OpenFile> {
    client.open(&Cred::root(), fid, READ).await.unwrap()
}

async fn create(client: &Client, name: &str, rest: bool) -> (Fid, Arc<OpenFile>) {
    let (root, name) = (Cred::root(), (client.root(), name.as_bytes()));
    let created = client.create_with(&root, name, 0o644, RW, layout(rest)).await;
    let (found, file) = created.unwrap();
    (found.attr.fid, file)
}

/// Creates a file with this data from a mount of its own, which keeps no lock.
async fn make(m: &Mounts, name: &str, rest: bool, data: &Bytes) -> Fid {
    let maker = m.cluster.mount().await;
    let (fid, file) = create(&maker, name, rest).await;
    assert_eq!(maker.write(&file, 0, data.clone()).await, Ok(data.len()));
    maker.release(&file).await.unwrap();
    assert_eq!(maker.umount().await, []);
    fid
}

/// Opens, reads and closes a file. Returns the data, and the number of requests of the open and the
/// read.
async fn open_and_read(m: &Mounts, mount: usize, fid: Fid) -> (Vec<u8>, u64) {
    let client = &m.mounts[mount];
    let before = requests(&m.cluster).await;
    let file = open(client, fid).await;
    let data = m.read(mount, &file, 0, 1 << 20).await;
    let sent = requests(&m.cluster).await - before;
    client.release(&file).await.unwrap();
    (data, sent)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_and_read_of_a_small_file_is_one_request() {
    let m = Mounts::start().await;
    for (name, rest, len) in [("a", false, 4096), ("b", true, 4096), ("c", true, WITH_OPEN_MAX)] {
        let data = pattern(len, 3);
        let fid = make(&m, name, rest, &data).await;
        for mount in [0, 1] {
            let (read, sent) = open_and_read(&m, mount, fid).await;
            assert!(read == data, "{name}");
            assert_eq!(sent, 1, "{name} on mount {mount}");
            let before = requests(&m.cluster).await;
            let file = open(&m.mounts[mount], fid).await;
            assert_eq!(requests(&m.cluster).await - before, 1, "a second open");
            for _ in 0..2 {
                assert!(m.read(mount, &file, 0, 1 << 20).await == data);
                assert_eq!(m.size(mount, fid).await, len as u64);
            }
            assert_eq!(requests(&m.cluster).await - before, 1, "reads from the cache");
            m.mounts[mount].release(&file).await.unwrap();
        }
    }
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lookup_tells_the_size_and_the_open_still_brings_the_data() {
    let m = Mounts::start().await;
    let maker = m.cluster.mount().await;
    let mut fid = Fid::ZERO;
    for name in ["first", "f"] {
        let (new, file) = create(&maker, name, true).await;
        assert_eq!(maker.write(&file, 0, pattern(4096, 3)).await, Ok(4096));
        maker.release(&file).await.unwrap();
        fid = new;
    }
    assert_eq!(maker.umount().await, []);
    let (client, root) = (&m.mounts[0], Cred::root());
    let lookup = async || client.lookup(&root, client.root(), b"f").await.unwrap().attr;
    // The mount learns the location of the maker's files.
    client.lookup(&root, client.root(), b"first").await.unwrap();
    let before = requests(&m.cluster).await;
    assert_eq!(lookup().await.size, 4096);
    assert_eq!(requests(&m.cluster).await - before, 1);
    assert_eq!(m.size(0, fid).await, 4096);
    let (read, sent) = open_and_read(&m, 0, fid).await;
    assert!(read == pattern(4096, 3));
    assert_eq!(sent, 1);
    let writer = m.mounts[1].open(&root, fid, RW).await.unwrap();
    for round in 1..5u64 {
        let len = 4096 + 100 * round as usize;
        m.write(1, &writer, 0, pattern(len, round)).await;
        let attr = lookup().await;
        assert_eq!(attr.size, len as u64);
        assert_eq!(
            attr.mtime,
            m.mounts[1].getattr(&root, fid).await.unwrap().attr.mtime
        );
        if round % 2 == 0 {
            assert!(open_and_read(&m, 0, fid).await.0 == pattern(len, round));
        }
        m.truncate(1, fid, 10 * round).await.unwrap();
        assert_eq!(lookup().await.size, 10 * round);
    }
    m.mounts[1].release(&writer).await.unwrap();
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn larger_files_need_a_read_but_no_lock() {
    let m = Mounts::start().await;
    let data = pattern(300_000, 5);
    // The last file continues on the OSTs, which have locks of their own.
    for (len, rest, expected) in [
        (WITH_OPEN_MAX + 1, true, 2),
        (ON_MDT as usize, false, 2),
        (300_000, true, 6),
    ] {
        let data = data.slice(..len);
        let fid = make(&m, &format!("f{len}"), rest, &data).await;
        for mount in [0, 1] {
            let (read, sent) = open_and_read(&m, mount, fid).await;
            assert!(read == data, "{len}");
            assert!((2..=expected).contains(&sent), "{sent} requests for {len} bytes");
        }
    }
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn create_and_write_and_close_of_a_small_file_are_three_requests() {
    let m = Mounts::start().await;
    let client = &m.mounts[0];
    let (_, first) = create(client, "first", true).await;
    client.release(&first).await.unwrap();
    let before = requests(&m.cluster).await;
    let (fid, file) = create(client, "f", true).await;
    let sent = async || requests(&m.cluster).await - before;
    assert_eq!(sent().await, 1, "create");
    m.write(0, &file, 0, pattern(4096, 1)).await;
    assert_eq!(sent().await, 2, "write");
    client.release(&file).await.unwrap();
    assert_eq!(sent().await, 3, "close");
    // The creator's lock covers the size, and another mount's glimpse revokes nothing.
    assert_eq!(m.size(0, fid).await, 4096);
    assert_eq!(sent().await, 3, "size");
    assert_eq!(m.size(1, fid).await, 4096);
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_for_writing_locks_the_data_and_knows_the_size() {
    let m = Mounts::start().await;
    let fid = make(&m, "f", true, &pattern(5000, 1)).await;
    let client = &m.mounts[0];
    let append = OpenFlags { append: true, ..RW };
    let before = requests(&m.cluster).await;
    let file = client.open(&Cred::root(), fid, append).await.unwrap();
    assert_eq!(client.write(&file, 0, pattern(3, 9)).await, Ok(3));
    // The open, the first write's look at the file's capabilities, and the write.
    assert!(requests(&m.cluster).await - before <= 3);
    let whole = [pattern(5000, 1), pattern(3, 9)].concat();
    assert!(m.read(0, &file, 0, 9000).await == whole);
    client.release(&file).await.unwrap();
    assert!(open_and_read(&m, 1, fid).await.0 == whole);
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opened_data_is_not_read_after_another_mount_changed_it() {
    let m = Mounts::start().await;
    let fid = make(&m, "f", true, &pattern(6000, 0)).await;
    let writer = m.mounts[1].open(&Cred::root(), fid, RW).await.unwrap();
    let mut model = pattern(6000, 0).to_vec();
    for round in 1..12u64 {
        // The reply has the data, but the first read comes after the change.
        let file = open(&m.mounts[0], fid).await;
        let bytes = pattern(500 * round as usize, round);
        m.write(1, &writer, 100 * round, bytes.clone()).await;
        let (from, to) = (100 * round as usize, 600 * round as usize);
        model.resize(model.len().max(to), 0);
        model[from..to].copy_from_slice(&bytes);
        if round % 3 == 0 {
            m.truncate(1, fid, 5000 + round).await.unwrap();
            model.resize(5000 + round as usize, 0);
        }
        if round % 5 == 0 {
            // Grows into the next component.
            m.write(1, &writer, ON_MDT - 10, pattern(4000, round)).await;
            model.resize(ON_MDT as usize - 10, 0);
            model.extend_from_slice(&pattern(4000, round));
        }
        assert!(m.read(0, &file, 0, 1 << 20).await == model, "round {round}");
        assert_eq!(m.size(0, fid).await, model.len() as u64);
        m.mounts[0].release(&file).await.unwrap();
        assert!(
            open_and_read(&m, 0, fid).await.0 == model,
            "round {round}, opened again"
        );
    }
    m.mounts[1].release(&writer).await.unwrap();
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_changes_during_an_open_are_not_overwritten_by_its_data() {
    let m = Mounts::start().await;
    let (fid, files) = m.open("f", layout(true), RW).await;
    let (client, file) = (&m.mounts[0], &files[0]);
    let write_all = async {
        for n in 1..200u8 {
            m.write(0, file, 0, vec![n; 3000].into()).await;
            let read = m.read(0, file, 0, 9000).await;
            assert!(read == [n; 3000], "write {n}");
        }
    };
    let open_all = async {
        for _ in 0..200 {
            let opened = open(client, fid).await;
            tokio::task::yield_now().await;
            client.release(&opened).await.unwrap();
        }
    };
    tokio::time::timeout(SOON, async { tokio::join!(write_all, open_all) })
        .await
        .unwrap();
    m.release(files).await;
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_opens_read_the_last_version_or_a_later_one() {
    let m = Arc::new(Mounts::start().await);
    let fid = make(&m, "f", true, &vec![0; 2000].into()).await;
    let written = Arc::new(AtomicU8::new(0));
    let (writer_m, writer_written) = (m.clone(), written.clone());
    let writer = tokio::spawn(async move {
        for n in 1..150u8 {
            let file = writer_m.mounts[1].open(&Cred::root(), fid, RW).await.unwrap();
            // A version's length tells its number, too.
            let len = 2000 + usize::from(n);
            writer_m.write(1, &file, 0, vec![n; len].into()).await;
            writer_m.mounts[1].release(&file).await.unwrap();
            writer_written.store(n, Ordering::SeqCst);
        }
    });
    while !writer.is_finished() {
        let least = written.load(Ordering::SeqCst);
        let (read, _) = open_and_read(&m, 0, fid).await;
        let version = read[0];
        assert!(version >= least, "read {version} after {least}");
        assert!(read.iter().all(|b| *b == version) && read.len() == 2000 + usize::from(version));
    }
    tokio::time::timeout(SOON, writer).await.unwrap().unwrap();
    Arc::into_inner(m).unwrap().stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resent_open_has_data_under_its_lock() {
    let m = Mounts::start_remote().await;
    let fid = make(&m, "f", true, &pattern(4096, 1)).await;
    let writer = m.mounts[1].open(&Cred::root(), fid, RW).await.unwrap();
    m.mounts[1].release(&writer).await.unwrap();
    // Meanwhile the other mount changes the data. It waits for the lock of the lost reply.
    m.cluster.rpc.faults().lose_replies(LDLM_ENQUEUE, 1);
    let (file, ()) = tokio::join!(open(&m.mounts[0], fid), async {
        let writer = m.mounts[1].open(&Cred::root(), fid, RW).await.unwrap();
        m.write(1, &writer, 0, pattern(100, 2)).await;
        m.mounts[1].release(&writer).await.unwrap();
    });
    let whole = [&pattern(100, 2)[..], &pattern(4096, 1)[100..]].concat();
    assert!(m.read(0, &file, 0, 9000).await == whole);
    m.mounts[0].release(&file).await.unwrap();
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replayed_open_brings_no_old_data() {
    let mut m = Mounts::start_remote().await;
    let fid = make(&m, "f", true, &pattern(4096, 1)).await;
    let file = open(&m.mounts[0], fid).await;
    for round in 2..5u64 {
        // The first mount's open and lock are replayed.
        m.lose_power(|uncommitted| uncommitted).await;
        let writer = m.mounts[1].open(&Cred::root(), fid, RW).await.unwrap();
        let len = 1000 * round as usize;
        m.write(1, &writer, 0, pattern(len, round)).await;
        m.truncate(1, fid, len as u64).await.unwrap();
        assert!(
            m.read(0, &file, 0, 9000).await == pattern(len, round),
            "round {round}"
        );
        let (read, _) = open_and_read(&m, 0, fid).await;
        assert!(read == pattern(len, round), "round {round}, opened again");
        m.mounts[1].release(&writer).await.unwrap();
    }
    m.mounts[0].release(&file).await.unwrap();
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renamed_and_removed_files_keep_the_right_data() {
    let m = Mounts::start().await;
    let (a, b) = (&m.mounts[0], &m.mounts[1]);
    let (root, cred) = (a.root(), Cred::root());
    let fid = make(&m, "f", true, &pattern(4096, 1)).await;
    a.lookup(&cred, root, b"f").await.unwrap();
    assert_eq!(open_and_read(&m, 0, fid).await.0, pattern(4096, 1));
    a.rename(&cred, (root, b"f"), (root, b"g")).await.unwrap();
    let before = requests(&m.cluster).await;
    let file = open(a, fid).await;
    assert!(m.read(0, &file, 0, 9000).await == pattern(4096, 1));
    assert!(requests(&m.cluster).await - before <= 2, "the data stays cached");
    a.link(&cred, fid, root, b"h").await.unwrap();
    a.unlink(&cred, root, b"g").await.unwrap();
    let writer = b.open(&cred, fid, RW).await.unwrap();
    m.write(1, &writer, 0, pattern(10, 7)).await;
    let whole = [&pattern(10, 7)[..], &pattern(4096, 1)[10..]].concat();
    assert!(m.read(0, &file, 0, 9000).await == whole);
    a.unlink(&cred, root, b"h").await.unwrap();
    m.write(1, &writer, 5000, pattern(10, 8)).await;
    assert_eq!(m.read(0, &file, 5000, 100).await, pattern(10, 8));
    b.release(&writer).await.unwrap();
    a.release(&file).await.unwrap();
    m.stop().await;
}
