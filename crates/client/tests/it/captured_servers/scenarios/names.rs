//! Names and attributes.

use crate::captured_servers::play::Play;
use client::{Cred, OpenFlags, SetAttr, SetTime};
use std::time::Duration;
use wire::{Errno, Fid, Time};

/// The names in a directory, sorted.
async fn names(play: &Play, dir: Fid) -> Vec<String> {
    let handle = play.client.opendir(&play.cred, dir).await.unwrap();
    let (mut names, mut offset) = (Vec::new(), 0);
    loop {
        let items = play.client.readdir(&handle, offset).await.unwrap();
        let Some(last) = items.last() else { break };
        offset = last.next;
        handle.advance(&items, items.len());
        let text = items
            .iter()
            .map(|i| String::from_utf8_lossy(&i.entry.name).into_owned());
        names.extend(text.filter(|n| n != "." && n != ".."));
    }
    names.sort();
    names
}

pub async fn mount(play: &Play) {
    let root = play.client.root();
    let attr = play.client.getattr(&play.cred, root).await.unwrap().attr;
    assert_eq!((attr.mode, attr.nlink, attr.size), (0o040_755, 3, 4096));
    assert_eq!(names(play, root).await, Vec::<String>::new());
}

pub async fn mkdir(play: &Play) {
    let root = play.client.root();
    play.client.getattr(&play.cred, root).await.unwrap();
    let attr = play
        .client
        .mkdir(&play.cred, root, b"dir1", 0o777)
        .await
        .unwrap()
        .attr;
    assert_eq!((attr.mode, attr.nlink, attr.size), (0o040_755, 2, 4096));
}

/// `touch`: opens the file, creates it if missing, and sets both times to now.
async fn touch_one(play: &Play, dir: Fid, name: &str) {
    let flags = OpenFlags {
        write: true,
        ..OpenFlags::default()
    };
    let created = play
        .client
        .create(&play.cred, dir, name.as_bytes(), 0o666, flags)
        .await;
    let (found, file) = created.unwrap();
    let now = SetAttr {
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    let fid = found.attr.fid;
    drop(found);
    play.client.setattr(&play.cred, fid, &now, None).await.unwrap();
    play.client.release(&file).await.unwrap();
}

pub async fn touch(play: &Play) {
    let dir = play.fid("dir1").await;
    for name in ["e1", "e2", "e3"] {
        touch_one(play, dir, name).await;
    }
    let fifo = play
        .client
        .mknod(&play.cred, dir, b"fifo1", 0o010_666, 0)
        .await
        .unwrap()
        .attr;
    assert_eq!((fifo.mode, fifo.nlink), (0o010_644, 1));
    let touched = play.walk("dir1/e1").await.unwrap().attr;
    assert_eq!((touched.mode, touched.size), (0o100_644, 0));
}

pub async fn nonexistent(play: &Play) {
    for _ in 0..2 {
        let found = play.walk("dir1/nope").await.map(|f| f.attr);
        assert_eq!(found, Err(Errno::ENOENT));
    }
}

pub async fn list_50(play: &Play) {
    let dir = play.fid("many").await;
    let found = names(play, dir).await;
    let mut expected: Vec<_> = (1..=50).map(|i| format!("f{i}")).collect();
    expected.sort();
    assert_eq!(found, expected);
    for name in found {
        let attr = play
            .client
            .lookup(&play.cred, dir, name.as_bytes())
            .await
            .unwrap()
            .attr;
        let digits = name.len() as u64 - 1;
        assert_eq!(
            (attr.mode, attr.size, attr.uid),
            (0o100_644, digits + 1, 0),
            "{name}"
        );
    }
}

pub async fn stat_one(play: &Play) {
    let attr = play.walk("many/f7").await.unwrap().attr;
    // 2026-11-20 10:38:15
    let then = Time::new(1_795_171_095, 0);
    assert_eq!(
        (attr.mode, attr.size, attr.blocks, attr.nlink),
        (0o100_644, 2, 8, 1)
    );
    assert_eq!(
        (attr.atime, attr.mtime, attr.ctime, attr.btime),
        (then, then, then, then)
    );
}

pub async fn readdir_big(play: &Play) {
    let dir = play.fid("big").await;
    assert_eq!(names(play, dir).await.len(), 1982);
}

pub async fn readdir_small(play: &Play) {
    let dir = play.fid("dir2").await;
    let expected = ["e2x", "fromB", "inh", "inproj", "link1", "sub", "sym1"];
    assert_eq!(names(play, dir).await, expected);
}

pub async fn unlink(play: &Play) {
    let dir = play.fid("dir1").await;
    touch_one(play, dir, "e3").await;
    play.client.unlink(&play.cred, dir, b"e3").await.unwrap();
    let many = play.fid("many").await;
    play.client.unlink(&play.cred, many, b"f49").await.unwrap();
}

pub async fn rmdir(play: &Play) {
    let root = play.client.root();
    play.client.mkdir(&play.cred, root, b"rd", 0o777).await.unwrap();
    play.client.rmdir(&play.cred, root, b"rd").await.unwrap();
    let result = play.client.rmdir(&play.cred, root, b"dir1").await;
    assert_eq!(result, Err(Errno::ENOTEMPTY));
}

pub async fn rename_same_dir(play: &Play) {
    let dir = play.fid("dir1").await;
    play.walk("dir1/e1").await.unwrap();
    play.client
        .rename(&play.cred, (dir, b"e1"), (dir, b"e1r"))
        .await
        .unwrap();
    play.walk("dir1/e2").await.unwrap();
    play.client
        .rename(&play.cred, (dir, b"e1r"), (dir, b"e2"))
        .await
        .unwrap();
}

pub async fn rename_cross_dir(play: &Play) {
    let root = play.client.root();
    let dir1 = play.fid("dir1").await;
    let dir2 = play
        .client
        .mkdir(&play.cred, root, b"dir2", 0o777)
        .await
        .unwrap()
        .attr
        .fid;
    play.client.mkdir(&play.cred, dir1, b"sub", 0o777).await.unwrap();
    play.client
        .rename(&play.cred, (dir1, b"e2"), (dir2, b"e2x"))
        .await
        .unwrap();
    play.client
        .rename(&play.cred, (dir1, b"sub"), (dir2, b"sub"))
        .await
        .unwrap();
}

pub async fn hardlink(play: &Play) {
    let (file, dir2) = (play.fid("dir1/file1").await, play.fid("dir2").await);
    let linked = play
        .client
        .link(&play.cred, file, dir2, b"link1")
        .await
        .unwrap()
        .attr;
    assert_eq!((linked.nlink, linked.fid), (2, file));
    let seen = play.walk("dir1/file1").await.unwrap().attr;
    assert_eq!((seen.nlink, seen.fid), (2, file));
}

pub async fn symlink(play: &Play) {
    let dir2 = play.fid("dir2").await;
    let created = play
        .client
        .symlink(&play.cred, dir2, b"sym1", b"../dir1/file1")
        .await;
    let attr = created.unwrap().attr;
    assert_eq!((attr.mode, attr.size), (0o120_777, 13));
    let target = play.client.readlink(&play.cred, attr.fid).await.unwrap();
    assert_eq!(target, b"../dir1/file1"[..]);
    let file = play.open("dir1/file1", OpenFlags::READ).await;
    assert_eq!(play.read(&file, 100).await, b"hello\n");
    play.client.release(&file).await.unwrap();
}

pub async fn attributes(play: &Play) {
    let file = play.fid("dir1/file1").await;
    let set = |set: SetAttr| async move { play.client.setattr(&play.cred, file, &set, None).await.unwrap() };
    let nothing = SetAttr::default;
    set(SetAttr {
        mode: Some(0o640),
        ..nothing()
    })
    .await;
    set(SetAttr {
        uid: Some(1000),
        gid: Some(1001),
        ..nothing()
    })
    .await;
    // 2020-02-02 02:02:02
    let then = Time::new(1_580_608_922, 0);
    set(SetAttr {
        atime: Some(SetTime::At(then)),
        mtime: Some(SetTime::At(then)),
        ..nothing()
    })
    .await;
    let attr = play.walk("dir1/file1").await.unwrap().attr;
    assert_eq!(
        (attr.mode, attr.uid, attr.gid, attr.size),
        (0o100_640, 1000, 1001, 6)
    );
    assert_eq!((attr.nlink, attr.atime, attr.mtime), (2, then, then));
}

pub async fn chmod_shared(play: &Play) {
    let file = play.fid("dir1/file1").await;
    let set = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    play.client.setattr(&play.cred, file, &set, None).await.unwrap();
}

pub async fn statfs(play: &Play) {
    let space = play.client.statfs().await.unwrap();
    // The values of df and lfs df, in KiB.
    let kib = |blocks: u64| blocks * u64::from(space.bsize) / 1024;
    assert_eq!(kib(space.blocks), 1_908_608);
    assert_eq!(kib(space.bavail), 1_758_052);
    assert_eq!((space.files, space.ffree), (130_893, 128_299));
    let osts = play.client.ost_space().await;
    let free: Vec<_> = osts.iter().map(|(i, s)| (i.0, s.os_files, s.os_ffree)).collect();
    assert_eq!(free, [(0, 65536, 64150), (1, 65536, 64149)]);
    let mdts = play.client.mdt_space().await;
    let free: Vec<_> = mdts.iter().map(|(i, s)| (*i, s.os_files, s.os_ffree)).collect();
    assert_eq!(free, [(0, 419_432, 417_151), (1, 419_432, 419_119)]);
}

pub async fn fid2path(play: &Play) {
    let (fid, _) = play.client.walk(&play.cred, b"dir1/file1", false).await.unwrap();
    assert_eq!(fid, Fid::new(0x2_0000_0402, 2, 0));
    assert_eq!(
        play.client.fid2path(&Cred::root(), fid).await.unwrap(),
        [&b"dir1/file1"[..], b"dir2/link1"]
    );
}

pub async fn permissions(play: &Play) {
    let root = play.client.root();
    let user = client::Cred::user(1000, 1000);
    let result = play.client.lookup(&user, root, b"dir1").await.map(|f| f.attr);
    assert_eq!(result, Err(Errno::EACCES));
}

pub async fn idle(_play: &Play) {
    tokio::time::sleep(Duration::from_secs(30)).await;
}
