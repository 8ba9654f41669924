//! Files by FID, mounts of subdirectories, and directories removed while they are open.

#![allow(clippy::unwrap_used)]

use crate::cluster::Cluster;
use bytes::Bytes;
use client::{Client, Cred, OpenFlags};
use std::sync::Arc;
use wire::striping::PlainLayout;
use wire::{Errno, Fid};

/// Creates a file of `bytes` bytes.
async fn make(c: &Client, dir: Fid, name: &str, bytes: usize) -> Fid {
    let root = Cred::root();
    let (found, file) = c
        .create(&root, dir, name.as_bytes(), 0o644, OpenFlags::READ_WRITE)
        .await
        .unwrap();
    if bytes > 0 {
        c.write(&file, 0, Bytes::from(vec![7; bytes])).await.unwrap();
        c.write_back(&file).await.unwrap();
    }
    c.release(&file).await.unwrap();
    found.attr.fid
}

async fn mkdir(c: &Client, dir: Fid, name: &str) -> Fid {
    let created = c.mkdir(&Cred::root(), dir, name.as_bytes(), 0o755).await;
    created.unwrap().attr.fid
}

/// The FID of a name.
async fn find(c: &Client, dir: Fid, name: &str) -> Result<Fid, Errno> {
    let found = c.lookup(&Cred::root(), dir, name.as_bytes()).await;
    found.map(|found| found.attr.fid)
}

async fn paths(c: &Client, fid: Fid) -> Result<Vec<String>, Errno> {
    let mut paths = c.fid2path(&Cred::root(), fid).await?;
    paths.sort();
    Ok(paths.into_iter().map(|p| String::from_utf8(p).unwrap()).collect())
}

/// Unmounts the clients and stops the cluster.
async fn end(cluster: Cluster, mounts: &[&Arc<Client>]) {
    for mount in mounts {
        mount.umount().await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_listings_do_not_show_are_found() {
    let cluster = Cluster::start(1).await;
    let c = cluster.mount().await;
    let root = Cred::root();
    mkdir(&c, c.root(), "d").await;
    // After several failed lookups the client lists the directory to know all its names.
    for i in 0..20 {
        assert_eq!(find(&c, c.root(), &format!("none{i}")).await, Err(Errno::ENOENT));
    }
    assert_eq!(find(&c, c.root(), ".lustre").await, Ok(Fid::DOT_LUSTRE));
    let by_fid = find(&c, Fid::DOT_LUSTRE, "fid").await.unwrap();
    let missing: Vec<String> = (1..20)
        .map(|i| Fid::new(0x2_0000_0400, 9000 + i, 0).to_string())
        .collect();
    for name in &missing {
        assert_eq!(find(&c, by_fid, name).await, Err(Errno::ENOENT));
    }
    let file = make(&c, c.root(), "f", 0).await;
    assert_eq!(find(&c, by_fid, &file.to_string()).await, Ok(file));
    assert_eq!(find(&c, by_fid, &c.root().to_string()).await, Ok(c.root()));
    c.unlink(&root, c.root(), b"f").await.unwrap();
    assert_eq!(find(&c, by_fid, &file.to_string()).await, Err(Errno::ENOENT));
    end(cluster, &[&c]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_has_a_path_for_each_of_its_names() {
    let cluster = Cluster::start(1).await;
    let c = cluster.mount().await;
    let root = Cred::root();
    let dir = mkdir(&c, c.root(), "d").await;
    let file = make(&c, dir, "f", 0).await;
    c.link(&root, file, c.root(), b"g").await.unwrap();
    assert_eq!(paths(&c, file).await.unwrap(), ["d/f", "g"]);
    assert_eq!(paths(&c, c.root()).await.unwrap(), [""]);
    let mut names = c.names(&root, file).await.unwrap();
    names.sort();
    let expected = [(dir, &b"f"[..]), (c.root(), b"g")].map(|(dir, name)| (dir, Bytes::from(name)));
    let mut expected = expected.to_vec();
    expected.sort();
    assert_eq!(names, expected);
    assert_eq!(c.names(&root, c.root()).await, Ok(Vec::new()));
    c.unlink(&root, c.root(), b"g").await.unwrap();
    assert_eq!(paths(&c, file).await.unwrap(), ["d/f"]);
    c.unlink(&root, dir, b"f").await.unwrap();
    assert_eq!(paths(&c, file).await, Err(Errno::ENOENT));
    let nowhere = Fid::new(0x3_0000_0000_0000, 1, 0);
    assert_eq!(paths(&c, nowhere).await, Err(Errno::ENOENT));
    end(cluster, &[&c]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_may_be_longer_than_4096_bytes() {
    let cluster = Cluster::start(0).await;
    let c = cluster.mount().await;
    let name = "n".repeat(250);
    let mut dir = c.root();
    for _ in 0..40 {
        dir = mkdir(&c, dir, &name).await;
    }
    let path = vec![name; 40].join("/");
    assert_eq!(paths(&c, dir).await.unwrap(), [path]);
    end(cluster, &[&c]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_has_the_path_of_its_file() {
    let cluster = Cluster::start(2).await;
    let c = cluster.mount().await;
    let root = Cred::root();
    let wanted = PlainLayout::request(65536, 2, None).build();
    c.setstripe(&root, c.root(), wanted).await.unwrap();
    let file = make(&c, c.root(), "f", 200_000).await;
    let empty = make(&c, c.root(), "empty", 0).await;
    let objects = async |fid| {
        let layout = c.getstripe(&root, fid).await.unwrap();
        let layout = PlainLayout::parse(&layout).unwrap();
        layout
            .objects
            .iter()
            .map(|o| o.l_ost_oi.fid())
            .collect::<Vec<_>>()
    };
    let own = objects(file).await;
    assert_eq!(own.len(), 2);
    for object in own {
        assert_eq!(paths(&c, object).await.unwrap(), ["f"], "{object}");
    }
    for object in objects(empty).await {
        assert_eq!(paths(&c, object).await, Err(Errno::ENODATA));
    }
    end(cluster, &[&c]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ordinary_users_may_use_fids_only_with_the_mount_option() {
    let cluster = Cluster::start(1).await;
    let strict = cluster.mount_with(|o| o.mounter = Cred::user(1000, 1000)).await;
    let open = cluster.mount_with(|o| o.user_fid2path = true).await;
    let (mounter, other) = (Cred::user(1000, 1000), Cred::user(2000, 2000));
    let file = make(&open, open.root(), "f", 0).await;
    assert_eq!(strict.fid2path(&mounter, file).await.unwrap(), [b"f"]);
    assert_eq!(strict.fid2path(&other, file).await, Err(Errno::EPERM));
    assert_eq!(strict.names(&other, file).await.err(), Some(Errno::EPERM));
    assert_eq!(strict.rmfid(&other, &[file]).await, Err(Errno::EPERM));
    let name = format!("lustre.path.{file}");
    let result = strict.getxattr(&other, strict.root(), name.as_bytes()).await;
    assert_eq!(result, Err(Errno::EPERM));
    assert_eq!(open.fid2path(&other, file).await.unwrap(), [b"f"]);
    // Permission checks of the servers still apply.
    assert_eq!(open.rmfid(&other, &[file]).await, Ok(vec![Err(Errno::EACCES)]));
    end(cluster, &[&strict, &open]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_removed_by_their_fid() {
    let cluster = Cluster::start(1).await;
    let (a, b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let dir = mkdir(&a, a.root(), "d").await;
    let mut files = Vec::new();
    for i in 0..600 {
        let name = format!("f{i}");
        let created = a.mknod(&root, dir, name.as_bytes(), 0o010_644, 0).await.unwrap();
        files.push(created.attr.fid);
    }
    let data = make(&a, dir, "data", 5000).await;
    let data_fid = b.lookup(&root, dir, b"data").await.unwrap().attr.fid;
    let open_file = b.open(&root, data_fid, OpenFlags::READ_WRITE).await.unwrap();
    files.push(data);
    let mut results = b.rmfid(&root, &files).await.unwrap();
    assert_eq!(results.pop(), Some(Err(Errno::EBUSY)));
    assert!(results.iter().all(Result::is_ok));
    b.release(&open_file).await.unwrap();
    assert_eq!(find(&a, dir, "f0").await, Err(Errno::ENOENT));
    assert_eq!(
        a.rmfid(&root, &[data, files[0]]).await,
        Ok(vec![Ok(()), Err(Errno::ENOENT)])
    );
    a.rmdir(&root, a.root(), b"d").await.unwrap();
    end(cluster, &[&a, &b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rm_entry_keeps_an_entry_of_an_existing_file() {
    let cluster = Cluster::start(0).await;
    let c = cluster.mount().await;
    mkdir(&c, c.root(), "d").await;
    let (root, user) = (Cred::root(), Cred::user(1000, 1000));
    assert_eq!(c.rm_entry(&root, c.root(), b"d").await, Err(Errno::EEXIST));
    assert_eq!(c.rm_entry(&root, c.root(), b"none").await, Err(Errno::ENOENT));
    assert_eq!(c.rm_entry(&user, c.root(), b"d").await, Err(Errno::EPERM));
    assert!(find(&c, c.root(), "d").await.is_ok());
    end(cluster, &[&c]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subdirectory_is_the_root_of_its_mount() {
    let cluster = Cluster::start(1).await;
    let c = cluster.mount().await;
    let root = Cred::root();
    let sub = mkdir(&c, c.root(), "sub").await;
    let dir = mkdir(&c, sub, "dir").await;
    let outside = make(&c, c.root(), "outside", 0).await;
    let m = cluster.mount_with(|o| o.subdir = "sub".to_owned()).await;
    assert_eq!(m.root(), sub);
    let inside = make(&m, m.root(), "inside", 10).await;
    assert_eq!(find(&c, sub, "inside").await, Ok(inside));
    assert_eq!(m.parent(&root, dir).await, Ok(sub));
    assert_eq!(
        m.parent(&root, sub).await,
        Ok(sub),
        "the mount's root is its own parent"
    );
    assert_eq!(find(&m, m.root(), ".lustre").await, Err(Errno::ENOENT));
    assert_eq!(paths(&m, dir).await.unwrap(), ["dir"]);
    assert_eq!(paths(&m, sub).await.unwrap(), [""]);
    for not_below in [c.root(), outside] {
        assert_eq!(paths(&m, not_below).await, Err(Errno::ENOENT));
    }
    // For a file with a name outside, only the inside paths are returned, and it is not removed.
    c.link(&root, inside, c.root(), b"link").await.unwrap();
    assert_eq!(paths(&m, inside).await.unwrap(), ["inside"]);
    let results = m.rmfid(&root, &[inside, outside, dir]).await.unwrap();
    assert_eq!(results, [Err(Errno::ENOENT), Err(Errno::ENOENT), Ok(())]);
    assert!(find(&c, c.root(), "outside").await.is_ok());
    end(cluster, &[&m, &c]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mounting_a_missing_or_inaccessible_subdirectory_fails() {
    let cluster = Cluster::start(0).await;
    let c = cluster.mount().await;
    c.mknod(&Cred::root(), c.root(), b"file", 0o010_644, 0)
        .await
        .unwrap();
    let private = c.mkdir(&Cred::root(), c.root(), b"private", 0o700).await.unwrap();
    mkdir(&c, private.attr.fid, "dir").await;
    drop(private);
    let mount_error = async |subdir: &str, mounter: Cred| {
        let mount = cluster.try_mount(|o| (o.subdir, o.mounter) = (subdir.to_owned(), mounter));
        let e = mount.await.err().unwrap();
        assert!(e.to_string().contains(&format!("/{subdir}")), "{e}");
        e.errno()
    };
    assert_eq!(mount_error("none/dir", Cred::root()).await, Errno::ENOENT);
    assert_eq!(mount_error("file", Cred::root()).await, Errno::ENOTDIR);
    assert_eq!(mount_error("..", Cred::root()).await, Errno::EINVAL);
    assert_eq!(
        mount_error("private/dir", Cred::user(1000, 1000)).await,
        Errno::EACCES
    );
    end(cluster, &[&c]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_moved_has_its_new_parent() {
    let cluster = Cluster::start(0).await;
    let (a, b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let (from, to) = (mkdir(&a, a.root(), "from").await, mkdir(&a, a.root(), "to").await);
    let dir = mkdir(&a, from, "d").await;
    assert_eq!(b.parent(&root, dir).await, Ok(from));
    a.rename(&root, (from, b"d"), (to, b"d")).await.unwrap();
    assert_eq!(b.parent(&root, dir).await, Ok(to));
    assert_eq!(b.parent(&root, to).await, Ok(b.root()));
    end(cluster, &[&a, &b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_directory_that_is_open_is_empty_and_has_attributes() {
    let cluster = Cluster::start(0).await;
    let (a, b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let dir = mkdir(&a, a.root(), "d").await;
    let handle = b.opendir(&root, dir).await.unwrap();
    let second = b.opendir(&root, dir).await.unwrap();
    a.rmdir(&root, a.root(), b"d").await.unwrap();
    let found = b.getattr(&root, dir).await.unwrap();
    assert_eq!((found.attr.fid, found.attr.nlink), (dir, 0));
    assert!(found.attr.is_dir() && !found.attr_cached);
    assert_eq!(b.readdir(&handle, 0).await, Ok(Vec::new()));
    drop(handle);
    assert!(b.getattr(&root, dir).await.is_ok());
    drop(second);
    let error = b.getattr(&root, dir).await.err();
    assert!(matches!(error, Some(Errno::ENOENT | Errno::ESTALE)));
    end(cluster, &[&a, &b]).await;
}
