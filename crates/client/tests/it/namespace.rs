//! Names and attributes, seen by two mounts of one file system.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use client::{Client, Cred, DirHandle, DirItem, OpenFlags, SetAttr, SetTime};
use std::sync::Arc;
use testkit::Cluster;
use wire::{Errno, LockTerms, RenameFlags, Time};

/// A time to set, with a fraction of a second.
const PAST: Time = Time::new(1000, 1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_directory_is_seen_by_another_mount() {
    let cluster = Cluster::start(0).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    assert_eq!(
        mount_b.lookup(&root, mount_b.root(), b"d").await.map(|f| f.attr),
        Err(Errno::ENOENT)
    );
    let created = mount_a
        .mkdir(&root, mount_a.root(), b"d", 0o750)
        .await
        .unwrap()
        .attr;
    let seen = mount_b.lookup(&root, mount_b.root(), b"d").await.unwrap().attr;
    assert_eq!((seen.fid, seen.mode & 0o7777), (created.fid, 0o750));
    assert!(seen.is_dir());
    let second = mount_a
        .mkdir(&root, mount_a.root(), b"d", 0o750)
        .await
        .map(|f| f.attr);
    assert_eq!(second, Err(Errno::EEXIST));
    mount_a.umount().await;
    mount_b.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_by_another_mount_invalidate_the_cache() {
    let cluster = Cluster::start(0).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let dir = mount_a
        .mkdir(&root, mount_a.root(), b"d", 0o755)
        .await
        .unwrap()
        .attr
        .fid;
    let cached = mount_b.lookup(&root, mount_b.root(), b"d").await.unwrap();
    assert!(cached.name_cached && cached.attr_cached);
    drop(cached);
    let set = SetAttr {
        mode: Some(0o700),
        mtime: Some(SetTime::At(PAST)),
        ..SetAttr::default()
    };
    mount_a.setattr(&root, dir, &set, None).await.unwrap();
    let seen = mount_b.getattr(&root, dir).await.unwrap().attr;
    assert_eq!((seen.mode & 0o7777, seen.mtime), (0o700, PAST));
    mount_a
        .rename(&root, (mount_a.root(), b"d"), (mount_a.root(), b"e"))
        .await
        .unwrap();
    assert_eq!(
        mount_b.lookup(&root, mount_b.root(), b"d").await.map(|f| f.attr),
        Err(Errno::ENOENT)
    );
    assert_eq!(
        mount_b
            .lookup(&root, mount_b.root(), b"e")
            .await
            .unwrap()
            .attr
            .fid,
        dir
    );
    mount_a.rmdir(&root, mount_a.root(), b"e").await.unwrap();
    assert_eq!(
        mount_b.lookup(&root, mount_b.root(), b"e").await.map(|f| f.attr),
        Err(Errno::ENOENT)
    );
    mount_a.umount().await;
    mount_b.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_of_two_names_is_seen_by_the_other_mount() {
    let cluster = Cluster::start(0).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let top = mount_a.root();
    let dir = mount_a.mkdir(&root, top, b"d", 0o755).await.unwrap().attr.fid;
    let file = mount_a
        .mknod(&root, dir, b"f", 0o010_644, 0)
        .await
        .unwrap()
        .attr
        .fid;
    let other = mount_a.mkdir(&root, top, b"e", 0o755).await.unwrap().attr.fid;
    let fid = |client: Arc<Client>, dir, name: &'static str| async move {
        let found = client.lookup(&Cred::root(), dir, name.as_bytes()).await;
        found.map(|f| f.attr.fid)
    };
    for (from, to) in [
        (mount_b.clone(), mount_a.clone()),
        (mount_a.clone(), mount_b.clone()),
    ] {
        let before = [fid(to.clone(), dir, "f").await, fid(to.clone(), top, "e").await];
        from.rename_with(&root, (dir, b"f"), (top, b"e"), RenameFlags::EXCHANGE)
            .await
            .unwrap();
        for client in [&from, &to] {
            let after = [
                fid(client.clone(), top, "e").await,
                fid(client.clone(), dir, "f").await,
            ];
            assert_eq!(after, before);
            let links = client.getattr(&root, dir).await.unwrap().attr.nlink;
            assert_eq!(links, if before[0] == Ok(file) { 3 } else { 2 });
        }
    }
    assert_eq!(fid(mount_b.clone(), dir, "f").await, Ok(file));
    assert_eq!(fid(mount_b.clone(), top, "e").await, Ok(other));
    mount_a.umount().await;
    mount_b.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whiteout_and_noreplace_renames_are_seen_by_the_other_mount() {
    let cluster = Cluster::start(0).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let top = mount_a.root();
    let file = mount_a
        .mknod(&root, top, b"f", 0o010_644, 0)
        .await
        .unwrap()
        .attr
        .fid;
    assert_eq!(mount_b.lookup(&root, top, b"f").await.unwrap().attr.fid, file);
    let noreplace = |client: Arc<Client>| async move {
        let (from, to) = ((top, &b"f"[..]), (top, &b"g"[..]));
        client
            .rename_with(&Cred::root(), from, to, RenameFlags::NOREPLACE)
            .await
    };
    noreplace(mount_a.clone()).await.unwrap();
    mount_a
        .rename_with(&root, (top, b"g"), (top, b"h"), RenameFlags::WHITEOUT)
        .await
        .unwrap();
    for client in [&mount_a, &mount_b] {
        let whiteout = client.lookup(&root, top, b"g").await.unwrap().attr;
        assert_eq!((whiteout.mode, whiteout.rdev), (0o020_000, 0));
        assert_eq!(client.lookup(&root, top, b"h").await.unwrap().attr.fid, file);
        assert_eq!(
            client.lookup(&root, top, b"f").await.map(drop),
            Err(Errno::ENOENT)
        );
    }
    mount_b.mknod(&root, top, b"f", 0o010_644, 0).await.unwrap();
    assert_eq!(noreplace(mount_a.clone()).await, Err(Errno::EEXIST));
    mount_a.umount().await;
    mount_b.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rename_with_flags_fails_on_lustres_lock_terms() {
    let cluster = Cluster::start(0).await;
    let client = cluster.mount_with(|o| o.lock_terms = LockTerms::Lustre).await;
    let root = Cred::root();
    let top = client.root();
    client.mkdir(&root, top, b"d", 0o755).await.unwrap();
    for flags in [
        RenameFlags::NOREPLACE,
        RenameFlags::EXCHANGE,
        RenameFlags::WHITEOUT,
    ] {
        let result = client.rename_with(&root, (top, b"d"), (top, b"e"), flags).await;
        assert_eq!(result, Err(Errno::EINVAL));
    }
    client.rename(&root, (top, b"d"), (top, b"e")).await.unwrap();
    client.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_is_complete_and_current_after_a_change() {
    let cluster = Cluster::start(0).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let dir = mount_a
        .mkdir(&root, mount_a.root(), b"many", 0o755)
        .await
        .unwrap()
        .attr
        .fid;
    for i in 0..500 {
        mount_a
            .mknod(&root, dir, format!("file{i}").as_bytes(), 0o010_644, 0)
            .await
            .unwrap();
    }
    let names = |client: Arc<Client>| async move {
        let handle = client.opendir(&Cred::root(), dir).await.unwrap();
        names_from(&client, &handle, 0).await
    };
    let mut expected: Vec<String> = (0..500).map(|i| format!("file{i}")).collect();
    expected.extend([".".to_owned(), "..".to_owned()]);
    expected.sort();
    assert_eq!(names(mount_a.clone()).await, expected);
    assert_eq!(names(mount_b.clone()).await, expected);
    mount_a.unlink(&root, dir, b"file7").await.unwrap();
    expected.retain(|n| n != "file7");
    assert_eq!(names(mount_b.clone()).await, expected);
    mount_a.umount().await;
    mount_b.umount().await;
    cluster.stop().await;
}

/// The names of an open directory from an offset on, sorted.
async fn names_from(client: &Client, handle: &DirHandle, mut offset: u64) -> Vec<String> {
    let mut names = Vec::new();
    loop {
        let items = client.readdir(handle, offset).await.unwrap();
        let Some(last) = items.last() else { break };
        offset = last.next;
        handle.advance(&items, items.len());
        let text = |i: &DirItem| String::from_utf8(i.entry.name.to_vec()).unwrap();
        names.extend(items.iter().map(text));
    }
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_listing_keeps_its_chunk_until_a_read_from_the_beginning() {
    let cluster = Cluster::start(0).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let dir = mount_a
        .mkdir(&root, mount_a.root(), b"d", 0o755)
        .await
        .unwrap()
        .attr
        .fid;
    for i in 0..20 {
        let name = format!("file{i:02}");
        mount_a
            .mknod(&root, dir, name.as_bytes(), 0o010_644, 0)
            .await
            .unwrap();
    }
    let handle = mount_a.opendir(&root, dir).await.unwrap();
    let items = mount_a.readdir(&handle, 0).await.unwrap();
    handle.advance(&items, 5);
    mount_b.unlink(&root, dir, &items[9].entry.name).await.unwrap();
    mount_b.mknod(&root, dir, b"new", 0o010_644, 0).await.unwrap();
    let rest = names_from(&mount_a, &handle, items[4].next).await;
    assert_eq!(rest.len(), 17, "{rest:?}");
    let removed_name = String::from_utf8(items[9].entry.name.to_vec()).unwrap();
    assert!(rest.contains(&removed_name));
    let all_names = names_from(&mount_a, &handle, 0).await;
    assert_eq!(all_names.len(), 22);
    assert!(all_names.contains(&"new".to_owned()) && !all_names.contains(&removed_name));
    mount_a.umount().await;
    mount_b.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_and_xattrs_are_seen_by_another_mount() {
    let cluster = Cluster::start(0).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let sym = mount_a
        .symlink(&root, mount_a.root(), b"s", b"some/where")
        .await
        .unwrap()
        .attr;
    assert_eq!(sym.size, 10);
    assert_eq!(
        &mount_b.readlink(&root, sym.fid).await.unwrap()[..],
        b"some/where"
    );
    let fifo = mount_a
        .mknod(&root, mount_a.root(), b"p", 0o010_600, 0)
        .await
        .unwrap()
        .attr
        .fid;
    assert_eq!(
        mount_a
            .link(&root, fifo, mount_a.root(), b"q")
            .await
            .unwrap()
            .attr
            .nlink,
        2
    );
    assert_eq!(
        mount_b
            .lookup(&root, mount_b.root(), b"q")
            .await
            .unwrap()
            .attr
            .fid,
        fifo
    );
    mount_a.unlink(&root, mount_a.root(), b"p").await.unwrap();
    assert_eq!(mount_b.getattr(&root, fifo).await.unwrap().attr.nlink, 1);
    mount_b
        .setxattr(&root, fifo, b"trusted.color", b"blue", 0)
        .await
        .unwrap();
    assert_eq!(
        &mount_a.getxattr(&root, fifo, b"trusted.color").await.unwrap()[..],
        b"blue"
    );
    mount_b
        .setxattr(&root, fifo, b"trusted.color", b"red", 2)
        .await
        .unwrap();
    assert_eq!(
        &mount_a.getxattr(&root, fifo, b"trusted.color").await.unwrap()[..],
        b"red"
    );
    assert_eq!(
        mount_b.setxattr(&root, fifo, b"trusted.color", b"x", 1).await,
        Err(Errno::EEXIST)
    );
    assert_eq!(
        &mount_a.listxattr(&root, fifo).await.unwrap()[..],
        b"trusted.color\0"
    );
    mount_b.removexattr(&root, fifo, b"trusted.color").await.unwrap();
    assert_eq!(
        mount_a.getxattr(&root, fifo, b"trusted.color").await,
        Err(Errno::ENODATA)
    );
    assert_eq!(
        mount_a.walk(&root, b"/q", true).await.map(|(fid, _)| fid),
        Ok(fifo)
    );
    assert_eq!(mount_a.fid2path(&root, fifo).await.unwrap(), [b"q"]);
    mount_a.umount().await;
    mount_b.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_permission_depends_on_mode_owner_and_group() {
    let cluster = Cluster::start(0).await;
    let mount_a = cluster.mount().await;
    let (root, user) = (Cred::root(), Cred::user(1000, 1000));
    let writable = mount_a
        .mkdir(&root, mount_a.root(), b"open", 0o1777)
        .await
        .unwrap()
        .attr
        .fid;
    let read_only = mount_a
        .mkdir(&root, mount_a.root(), b"shut", 0o755)
        .await
        .unwrap()
        .attr
        .fid;
    assert_eq!(
        mount_a.mkdir(&user, read_only, b"x", 0o755).await.map(|f| f.attr),
        Err(Errno::EACCES)
    );
    let mine = mount_a.mkdir(&user, writable, b"mine", 0o770).await.unwrap().attr;
    assert_eq!((mine.uid, mine.gid), (1000, 1000));
    let group = SetAttr {
        uid: Some(0),
        gid: Some(50),
        ..SetAttr::default()
    };
    mount_a.setattr(&root, mine.fid, &group, None).await.unwrap();
    assert_eq!(
        mount_a.mkdir(&user, mine.fid, b"y", 0o755).await.map(|f| f.attr),
        Err(Errno::EACCES)
    );
    let member = Cred {
        groups: client::Groups::Known(std::sync::Arc::from([50])),
        ..user
    };
    mount_a.mkdir(&member, mine.fid, b"y", 0o755).await.unwrap();
    mount_a.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_mtime_set_in_the_past_outlives_write_back_and_unmount() {
    let cluster = Cluster::start(1).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let (found, file) = mount_a
        .create(&root, mount_a.root(), b"f", 0o644, OpenFlags::READ_WRITE)
        .await
        .unwrap();
    let fid = found.attr.fid;
    drop(found);
    mount_a.write(&file, 0, Bytes::from_static(b"x")).await.unwrap();
    mount_a.write_back(&file).await.unwrap();
    let set = SetAttr {
        mtime: Some(SetTime::At(PAST)),
        ..SetAttr::default()
    };
    assert_eq!(
        mount_a.setattr(&root, fid, &set, None).await.unwrap().attr.mtime,
        PAST
    );
    assert_eq!(mount_b.getattr(&root, fid).await.unwrap().attr.mtime, PAST);
    mount_a.release(&file).await.unwrap();
    assert_eq!(mount_b.getattr(&root, fid).await.unwrap().attr.mtime, PAST);
    mount_a.umount().await;
    assert_eq!(mount_b.getattr(&root, fid).await.unwrap().attr.mtime, PAST);
    mount_b.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_needs_current_search_permission() {
    let cluster = Cluster::start(0).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let (root, user) = (Cred::root(), Cred::user(1000, 1000));
    let dir = mount_a
        .mkdir(&root, mount_a.root(), b"d", 0o755)
        .await
        .unwrap()
        .attr
        .fid;
    let inner = mount_a.mkdir(&root, dir, b"inner", 0o755).await.unwrap().attr.fid;
    mount_a
        .symlink(&root, inner, b"up", b"../../d/inner/")
        .await
        .unwrap();
    let walk = async |path: &[u8]| mount_b.walk(&user, path, true).await.map(|(fid, _)| fid);
    assert_eq!(walk(b"/d/inner").await, Ok(inner));
    assert_eq!(walk(b"d/./inner/up/up/..").await, Ok(dir));
    assert_eq!(walk(b"d/inner/up").await, Ok(inner));
    let mode = |mode| SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    // The names stay cached. A change in the directory drops only its cached attributes.
    mount_a.mkdir(&root, dir, b"other", 0o755).await.unwrap();
    assert_eq!(walk(b"/d/inner").await, Ok(inner));
    mount_b.setattr(&root, dir, &mode(0o700), None).await.unwrap();
    mount_b.getattr(&root, dir).await.unwrap();
    assert_eq!(walk(b"/d/inner").await, Err(Errno::EACCES));
    mount_a.setattr(&root, dir, &mode(0o711), None).await.unwrap();
    assert_eq!(
        walk(b"/d/inner").await,
        Ok(inner),
        "a denial is checked again with current attributes"
    );
    mount_a.umount().await;
    mount_b.umount().await;
    cluster.stop().await;
}
