//! Files by FID, mounts of subdirectories, and directories removed while they are open.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use client::{Client, Cred, OpenFlags};
use std::sync::Arc;
use testkit::Cluster;
use wire::striping::PlainLayout;
use wire::{Errno, Fid};

/// Creates a file of `bytes` bytes.
async fn make(client: &Client, dir: Fid, name: &str, bytes: usize) -> Fid {
    let root = Cred::root();
    let (found, file) = client
        .create(&root, dir, name.as_bytes(), 0o644, OpenFlags::READ_WRITE)
        .await
        .unwrap();
    if bytes > 0 {
        client.write(&file, 0, Bytes::from(vec![7; bytes])).await.unwrap();
        client.write_back(&file).await.unwrap();
    }
    client.release(&file).await.unwrap();
    found.attr.fid
}

async fn mkdir(client: &Client, dir: Fid, name: &str) -> Fid {
    let created = client.mkdir(&Cred::root(), dir, name.as_bytes(), 0o755).await;
    created.unwrap().attr.fid
}

/// The FID of a name.
async fn find(client: &Client, dir: Fid, name: &str) -> Result<Fid, Errno> {
    let found = client.lookup(&Cred::root(), dir, name.as_bytes()).await;
    found.map(|found| found.attr.fid)
}

async fn paths(client: &Client, fid: Fid) -> Result<Vec<String>, Errno> {
    let mut paths = client.fid2path(&Cred::root(), fid).await?;
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
async fn lookups_find_names_that_listings_do_not_show() {
    let cluster = Cluster::start(1).await;
    let client = cluster.mount().await;
    let root = Cred::root();
    mkdir(&client, client.root(), "d").await;
    // After several failed lookups the client lists the directory to know all its names.
    for i in 0..20 {
        assert_eq!(
            find(&client, client.root(), &format!("none{i}")).await,
            Err(Errno::ENOENT)
        );
    }
    assert_eq!(find(&client, client.root(), ".lustre").await, Ok(Fid::DOT_LUSTRE));
    let by_fid = find(&client, Fid::DOT_LUSTRE, "fid").await.unwrap();
    let missing: Vec<String> = (1..20)
        .map(|i| Fid::new(0x2_0000_0400, 9000 + i, 0).to_string())
        .collect();
    for name in &missing {
        assert_eq!(find(&client, by_fid, name).await, Err(Errno::ENOENT));
    }
    let file = make(&client, client.root(), "f", 0).await;
    assert_eq!(find(&client, by_fid, &file.to_string()).await, Ok(file));
    assert_eq!(
        find(&client, by_fid, &client.root().to_string()).await,
        Ok(client.root())
    );
    client.unlink(&root, client.root(), b"f").await.unwrap();
    assert_eq!(find(&client, by_fid, &file.to_string()).await, Err(Errno::ENOENT));
    end(cluster, &[&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_has_a_path_for_each_of_its_names() {
    let cluster = Cluster::start(1).await;
    let client = cluster.mount().await;
    let root = Cred::root();
    let dir = mkdir(&client, client.root(), "d").await;
    let file = make(&client, dir, "f", 0).await;
    client.link(&root, file, client.root(), b"g").await.unwrap();
    assert_eq!(paths(&client, file).await.unwrap(), ["d/f", "g"]);
    assert_eq!(paths(&client, client.root()).await.unwrap(), [""]);
    let mut names = client.names(&root, file).await.unwrap();
    names.sort();
    let expected = [(dir, &b"f"[..]), (client.root(), b"g")].map(|(dir, name)| (dir, Bytes::from(name)));
    let mut expected = expected.to_vec();
    expected.sort();
    assert_eq!(names, expected);
    assert_eq!(client.names(&root, client.root()).await, Ok(Vec::new()));
    client.unlink(&root, client.root(), b"g").await.unwrap();
    assert_eq!(paths(&client, file).await.unwrap(), ["d/f"]);
    client.unlink(&root, dir, b"f").await.unwrap();
    assert_eq!(paths(&client, file).await, Err(Errno::ENOENT));
    let nowhere = Fid::new(0x3_0000_0000_0000, 1, 0);
    assert_eq!(paths(&client, nowhere).await, Err(Errno::ENOENT));
    end(cluster, &[&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_may_be_longer_than_4096_bytes() {
    let cluster = Cluster::start(0).await;
    let client = cluster.mount().await;
    let name = "n".repeat(250);
    let mut dir = client.root();
    for _ in 0..40 {
        dir = mkdir(&client, dir, &name).await;
    }
    let path = vec![name; 40].join("/");
    assert_eq!(paths(&client, dir).await.unwrap(), [path]);
    end(cluster, &[&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_has_the_path_of_its_file() {
    let cluster = Cluster::start(2).await;
    let client = cluster.mount().await;
    let root = Cred::root();
    let wanted = PlainLayout::request(65536, 2, None).build();
    client.setstripe(&root, client.root(), wanted).await.unwrap();
    let file = make(&client, client.root(), "f", 200_000).await;
    let empty = make(&client, client.root(), "empty", 0).await;
    let objects = async |fid| {
        let layout = client.getstripe(&root, fid).await.unwrap();
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
        assert_eq!(paths(&client, object).await.unwrap(), ["f"], "{object}");
    }
    for object in objects(empty).await {
        assert_eq!(paths(&client, object).await, Err(Errno::ENODATA));
    }
    end(cluster, &[&client]).await;
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
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let dir = mkdir(&mount_a, mount_a.root(), "d").await;
    let mut files = Vec::new();
    for i in 0..600 {
        let name = format!("f{i}");
        let created = mount_a
            .mknod(&root, dir, name.as_bytes(), 0o010_644, 0)
            .await
            .unwrap();
        files.push(created.attr.fid);
    }
    let data = make(&mount_a, dir, "data", 5000).await;
    let data_fid = mount_b.lookup(&root, dir, b"data").await.unwrap().attr.fid;
    let open_file = mount_b
        .open(&root, data_fid, OpenFlags::READ_WRITE)
        .await
        .unwrap();
    files.push(data);
    let mut results = mount_b.rmfid(&root, &files).await.unwrap();
    assert_eq!(results.pop(), Some(Err(Errno::EBUSY)));
    assert!(results.iter().all(Result::is_ok));
    mount_b.release(&open_file).await.unwrap();
    assert_eq!(find(&mount_a, dir, "f0").await, Err(Errno::ENOENT));
    assert_eq!(
        mount_a.rmfid(&root, &[data, files[0]]).await,
        Ok(vec![Ok(()), Err(Errno::ENOENT)])
    );
    mount_a.rmdir(&root, mount_a.root(), b"d").await.unwrap();
    end(cluster, &[&mount_a, &mount_b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rm_entry_keeps_an_entry_of_an_existing_file() {
    let cluster = Cluster::start(0).await;
    let client = cluster.mount().await;
    mkdir(&client, client.root(), "d").await;
    let (root, user) = (Cred::root(), Cred::user(1000, 1000));
    assert_eq!(
        client.rm_entry(&root, client.root(), b"d").await,
        Err(Errno::EEXIST)
    );
    assert_eq!(
        client.rm_entry(&root, client.root(), b"none").await,
        Err(Errno::ENOENT)
    );
    assert_eq!(
        client.rm_entry(&user, client.root(), b"d").await,
        Err(Errno::EPERM)
    );
    assert!(find(&client, client.root(), "d").await.is_ok());
    end(cluster, &[&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subdirectory_is_the_root_of_its_mount() {
    let cluster = Cluster::start(1).await;
    let client = cluster.mount().await;
    let root = Cred::root();
    let sub = mkdir(&client, client.root(), "sub").await;
    let dir = mkdir(&client, sub, "dir").await;
    let outside = make(&client, client.root(), "outside", 0).await;
    let submount = cluster.mount_with(|o| o.subdir = "sub".to_owned()).await;
    assert_eq!(submount.root(), sub);
    let inside = make(&submount, submount.root(), "inside", 10).await;
    assert_eq!(find(&client, sub, "inside").await, Ok(inside));
    assert_eq!(submount.parent(&root, dir).await, Ok(sub));
    assert_eq!(
        submount.parent(&root, sub).await,
        Ok(sub),
        "the mount's root is its own parent"
    );
    assert_eq!(
        find(&submount, submount.root(), ".lustre").await,
        Err(Errno::ENOENT)
    );
    assert_eq!(paths(&submount, dir).await.unwrap(), ["dir"]);
    assert_eq!(paths(&submount, sub).await.unwrap(), [""]);
    for not_below in [client.root(), outside] {
        assert_eq!(paths(&submount, not_below).await, Err(Errno::ENOENT));
    }
    // A file also has a name outside: the client returns only the paths inside, and does not remove
    // the file.
    client.link(&root, inside, client.root(), b"link").await.unwrap();
    assert_eq!(paths(&submount, inside).await.unwrap(), ["inside"]);
    let results = submount.rmfid(&root, &[inside, outside, dir]).await.unwrap();
    assert_eq!(results, [Err(Errno::ENOENT), Err(Errno::ENOENT), Ok(())]);
    assert!(find(&client, client.root(), "outside").await.is_ok());
    end(cluster, &[&submount, &client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mounting_a_missing_or_inaccessible_subdirectory_fails() {
    let cluster = Cluster::start(0).await;
    let client = cluster.mount().await;
    client
        .mknod(&Cred::root(), client.root(), b"file", 0o010_644, 0)
        .await
        .unwrap();
    let private = client
        .mkdir(&Cred::root(), client.root(), b"private", 0o700)
        .await
        .unwrap();
    mkdir(&client, private.attr.fid, "dir").await;
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
    end(cluster, &[&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_moved_has_its_new_parent() {
    let cluster = Cluster::start(0).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let (from, to) = (
        mkdir(&mount_a, mount_a.root(), "from").await,
        mkdir(&mount_a, mount_a.root(), "to").await,
    );
    let dir = mkdir(&mount_a, from, "d").await;
    assert_eq!(mount_b.parent(&root, dir).await, Ok(from));
    mount_a.rename(&root, (from, b"d"), (to, b"d")).await.unwrap();
    assert_eq!(mount_b.parent(&root, dir).await, Ok(to));
    assert_eq!(mount_b.parent(&root, to).await, Ok(mount_b.root()));
    end(cluster, &[&mount_a, &mount_b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_directory_that_is_open_is_empty_and_has_attributes() {
    let cluster = Cluster::start(0).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let dir = mkdir(&mount_a, mount_a.root(), "d").await;
    let handle = mount_b.opendir(&root, dir).await.unwrap();
    let second = mount_b.opendir(&root, dir).await.unwrap();
    mount_a.rmdir(&root, mount_a.root(), b"d").await.unwrap();
    let found = mount_b.getattr(&root, dir).await.unwrap();
    assert_eq!((found.attr.fid, found.attr.nlink), (dir, 0));
    assert!(found.attr.is_dir() && !found.attr_cached);
    assert_eq!(mount_b.readdir(&handle, 0).await, Ok(Vec::new()));
    drop(handle);
    assert!(mount_b.getattr(&root, dir).await.is_ok());
    drop(second);
    let error = mount_b.getattr(&root, dir).await.err();
    assert!(matches!(error, Some(Errno::ENOENT | Errno::ESTALE)));
    end(cluster, &[&mount_a, &mount_b]).await;
}
