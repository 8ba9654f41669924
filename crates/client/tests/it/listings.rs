//! Directory listings with attributes, like `ls -l`: batched lookups, if the target supports them,
//! give the same results as single lookups.

#![allow(clippy::unwrap_used)]

use client::{Client, Cred, DirHandle, OpenFlags};
use testkit::Cluster;
use wire::{Errno, Fid, LUSTRE_VERSION_CODE, MDS_CONNECT, OBD_CONNECT2_BATCH_RPC};

const FILES: u64 = 1000;
/// Names that the FUSE front end looks up in one batch.
const LOOKUP_BATCH: usize = 128;

async fn mkdir(client: &Client, name: &str) -> Fid {
    let created = client
        .mkdir(&Cred::root(), client.root(), name.as_bytes(), 0o755)
        .await;
    created.unwrap().attr.fid
}

async fn fill(client: &Client, dir: Fid) {
    let root = Cred::root();
    for i in 0..FILES {
        let (name, flags) = (format!("f{i}"), OpenFlags::READ_WRITE);
        let (_, file) = client
            .create(&root, dir, name.as_bytes(), 0o644, flags)
            .await
            .unwrap();
        client.release(&file).await.unwrap();
    }
}

/// The listed attributes of a file: name, mode, size and links.
type Line = (Vec<u8>, Result<(u32, u64, u32), Errno>);

/// Lists a directory as the FUSE front end does.
async fn list(client: &Client, cred: &Cred, dir: &DirHandle) -> Vec<Line> {
    let (mut lines, mut offset) = (Vec::new(), 0);
    loop {
        let items = client.readdir(dir, offset).await.unwrap();
        let Some(last) = items.last() else { break };
        offset = last.next;
        let names: Vec<&[u8]> = items.iter().map(|i| &i.entry.name[..]).collect();
        let names: Vec<&[u8]> = names.into_iter().filter(|n| !n.starts_with(b".")).collect();
        for names in names.chunks(LOOKUP_BATCH) {
            client.lookup_batch(cred, dir.fid, names).await;
            for name in names {
                let found = client.lookup(cred, dir.fid, name).await;
                let attrs = found.map(|f| (f.attr.mode, f.attr.size, f.attr.nlink));
                lines.push((name.to_vec(), attrs));
            }
        }
    }
    lines.sort();
    lines
}

/// Requests that the metadata target has handled, without cancellations.
fn requests(cluster: &Cluster) -> u64 {
    let stats = cluster.rpc.stats();
    let mdt = stats.iter().filter(|s| ["mdt", "mdt_out"].contains(&s.name));
    mdt.map(|s| s.handled).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_reduce_the_requests_of_a_listing_with_attributes() {
    let cluster = Cluster::start(1).await;
    let creator = cluster.mount().await;
    let dir = mkdir(&creator, "d").await;
    fill(&creator, dir).await;
    let root = Cred::root();
    let with_batches = cluster.mount().await;
    // A server without batches; all other flags are granted.
    let flags2 = !OBD_CONNECT2_BATCH_RPC;
    let faults = cluster.rpc.faults();
    faults.limit_connect_flags(MDS_CONNECT, LUSTRE_VERSION_CODE, (u64::MAX, flags2));
    let without_batches = cluster.mount().await;
    let mut lists = Vec::new();
    for (client, expected) in [(&with_batches, 8..20), (&without_batches, FILES..FILES + 20)] {
        let open = client.opendir(&root, dir).await.unwrap();
        let before = requests(&cluster);
        lists.push(list(client, &root, &open).await);
        let sent = requests(&cluster) - before;
        println!("{sent} requests for {FILES} files");
        assert!(expected.contains(&sent), "{sent} requests");
        let before = requests(&cluster);
        assert_eq!(&list(client, &root, &open).await, lists.last().unwrap());
        assert!(
            requests(&cluster) - before < 5,
            "all attributes are cached under locks"
        );
    }
    assert_eq!(lists[0], lists[1]);
    assert_eq!(lists[0].len() as u64, FILES);
    for client in [creator, with_batches, without_batches] {
        client.umount().await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batched_and_single_lookups_give_the_same_results() {
    let cluster = Cluster::start(2).await;
    let creator = cluster.mount().await;
    let dir = mkdir(&creator, "d").await;
    let root = Cred::root();
    creator.mkdir(&root, dir, b"dir", 0o711).await.unwrap();
    creator.symlink(&root, dir, b"link", b"target").await.unwrap();
    creator.mknod(&root, dir, b"fifo", 0o010600, 0).await.unwrap();
    for (name, mode, len) in [
        ("secret", 0o600, 5),
        ("written", 0o755, 70_000),
        ("empty", 0o444, 0),
    ] {
        let flags = OpenFlags::READ_WRITE;
        let (found, file) = creator
            .create(&root, dir, name.as_bytes(), mode, flags)
            .await
            .unwrap();
        let fid = found.without_locks().attr.fid;
        if len > 0 {
            creator.write(&file, 0, vec![7; len].into()).await.unwrap();
        }
        creator.release(&file).await.unwrap();
        if name == "written" {
            creator.link(&root, fid, dir, b"other").await.unwrap();
        }
    }
    // The lister's lookups revoke the locks that the creator kept.
    let lister = cluster.mount().await;
    let names: [&[u8]; 9] = [
        b"dir", b"link", b"fifo", b"secret", b"written", b"other", b"empty", b"gone", b"never",
    ];
    lister.lookup_batch(&root, dir, &names).await;
    let single = cluster.mount().await;
    for name in names {
        let attrs = |client: &std::sync::Arc<Client>| {
            let client = client.clone();
            async move {
                let found = client.lookup(&Cred::root(), dir, name).await;
                found.map(|f| (f.attr.fid, f.attr.mode, f.attr.size, f.attr.nlink, f.attr.mtime))
            }
        };
        assert_eq!(
            attrs(&lister).await,
            attrs(&single).await,
            "{}",
            name.escape_ascii()
        );
    }
    // Changes are visible after both kinds of lookup.
    creator.unlink(&root, dir, b"empty").await.unwrap();
    creator
        .rename(&root, (dir, b"fifo"), (dir, b"gone"))
        .await
        .unwrap();
    assert_eq!(
        lister.lookup(&root, dir, b"empty").await.err(),
        Some(Errno::ENOENT)
    );
    assert_eq!(
        lister.lookup(&root, dir, b"fifo").await.err(),
        Some(Errno::ENOENT)
    );
    assert_eq!(
        lister.lookup(&root, dir, b"gone").await.unwrap().attr.mode,
        0o010600
    );
    for client in [creator, lister, single] {
        client.umount().await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listings_and_changes_of_the_same_names_make_progress() {
    let cluster = Cluster::start(1).await;
    let (creator, lister) = (cluster.mount().await, cluster.mount().await);
    let dir = mkdir(&creator, "d").await;
    let root = Cred::root();
    let name = |i: usize| format!("f{}", i % 40).into_bytes();
    for i in 0..40 {
        creator.mknod(&root, dir, &name(i), 0o010600, 0).await.unwrap();
    }
    let changes = async {
        for i in 0..400 {
            creator
                .link(&root, file(&creator, dir, &name(i)).await, dir, b"second")
                .await
                .unwrap();
            creator
                .rename(&root, (dir, b"second"), (dir, &name(i + 7)))
                .await
                .unwrap();
            // A rename between two names of one file changes nothing: the unlink removes the second
            // name.
            let _ = creator.unlink(&root, dir, b"second").await;
        }
    };
    let listings = async {
        let names: Vec<Vec<u8>> = (0..40).map(name).collect();
        let names: Vec<&[u8]> = names.iter().map(|n| &n[..]).collect();
        loop {
            lister.lookup_batch(&root, dir, &names).await;
            tokio::task::yield_now().await;
        }
    };
    // A lock that the client does not know would block the changes until an eviction.
    tokio::select! {
        () = changes => {}
        () = listings => {}
        () = tokio::time::sleep(std::time::Duration::from_secs(90)) => panic!("the changes are blocked"),
    }
    for i in 0..40 {
        let (a, b) = (
            file(&creator, dir, &name(i)).await,
            file(&lister, dir, &name(i)).await,
        );
        assert_eq!(a, b);
    }
    creator.umount().await;
    lister.umount().await;
    cluster.stop().await;
}

async fn file(client: &Client, dir: Fid, name: &[u8]) -> Fid {
    client.lookup(&Cred::root(), dir, name).await.unwrap().attr.fid
}
