//! Scenarios with names and attributes.

use crate::captured_servers::scenario_run::ScenarioRun;
use client::{Cred, OpenFlags, SetAttr, SetTime};
use std::time::Duration;
use wire::{Errno, Fid, Time};

/// The names in a directory, sorted.
pub(super) async fn names(run: &ScenarioRun, dir: Fid) -> Vec<String> {
    let handle = run.client.opendir(&run.cred, dir).await.unwrap();
    let (mut names, mut offset) = (Vec::new(), 0);
    loop {
        let items = run.client.readdir(&handle, offset).await.unwrap();
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

pub async fn mount(run: &ScenarioRun) {
    let root = run.client.root();
    let attr = run.client.getattr(&run.cred, root).await.unwrap().attr;
    assert_eq!((attr.mode, attr.nlink, attr.size), (0o040_755, 3, 4096));
    assert_eq!(names(run, root).await, Vec::<String>::new());
}

pub async fn mkdir(run: &ScenarioRun) {
    let root = run.client.root();
    run.client.getattr(&run.cred, root).await.unwrap();
    let attr = run
        .client
        .mkdir(&run.cred, root, b"dir1", 0o777)
        .await
        .unwrap()
        .attr;
    assert_eq!((attr.mode, attr.nlink, attr.size), (0o040_755, 2, 4096));
}

/// `touch`: opens the file, creates it if missing, and sets both times to now. Returns its FID.
pub(super) async fn touch_one(run: &ScenarioRun, dir: Fid, name: &str) -> Fid {
    let flags = OpenFlags {
        write: true,
        ..OpenFlags::default()
    };
    let created = run
        .client
        .create(&run.cred, dir, name.as_bytes(), 0o666, flags)
        .await;
    let (found, file) = created.unwrap();
    let now = SetAttr {
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    let fid = found.attr.fid;
    drop(found);
    run.client.setattr(&run.cred, fid, &now, None).await.unwrap();
    run.client.release(&file).await.unwrap();
    fid
}

pub async fn touch(run: &ScenarioRun) {
    let dir = run.fid("dir1").await;
    for name in ["e1", "e2", "e3"] {
        touch_one(run, dir, name).await;
    }
    let fifo = run
        .client
        .mknod(&run.cred, dir, b"fifo1", 0o010_666, 0)
        .await
        .unwrap()
        .attr;
    assert_eq!((fifo.mode, fifo.nlink), (0o010_644, 1));
    let touched = run.walk("dir1/e1").await.unwrap().attr;
    assert_eq!((touched.mode, touched.size), (0o100_644, 0));
}

pub async fn nonexistent(run: &ScenarioRun) {
    for _ in 0..2 {
        let found = run.walk("dir1/nope").await.map(|f| f.attr);
        assert_eq!(found, Err(Errno::ENOENT));
    }
}

pub async fn list_50(run: &ScenarioRun) {
    let dir = run.fid("many").await;
    let found = names(run, dir).await;
    let mut expected: Vec<_> = (1..=50).map(|i| format!("f{i}")).collect();
    expected.sort();
    assert_eq!(found, expected);
    for name in found {
        let attr = run
            .client
            .lookup(&run.cred, dir, name.as_bytes())
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

pub async fn stat_one(run: &ScenarioRun) {
    let attr = run.walk("many/f7").await.unwrap().attr;
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

pub async fn readdir_big(run: &ScenarioRun) {
    let dir = run.fid("big").await;
    assert_eq!(names(run, dir).await.len(), 1982);
}

pub async fn readdir_small(run: &ScenarioRun) {
    let dir = run.fid("dir2").await;
    let expected = ["e2x", "fromB", "inh", "inproj", "link1", "sub", "sym1"];
    assert_eq!(names(run, dir).await, expected);
}

pub async fn unlink(run: &ScenarioRun) {
    let dir = run.fid("dir1").await;
    touch_one(run, dir, "e3").await;
    run.client.unlink(&run.cred, dir, b"e3").await.unwrap();
    let many = run.fid("many").await;
    run.client.unlink(&run.cred, many, b"f49").await.unwrap();
}

pub async fn rmdir(run: &ScenarioRun) {
    let root = run.client.root();
    run.client.mkdir(&run.cred, root, b"rd", 0o777).await.unwrap();
    run.client.rmdir(&run.cred, root, b"rd").await.unwrap();
    let result = run.client.rmdir(&run.cred, root, b"dir1").await;
    assert_eq!(result, Err(Errno::ENOTEMPTY));
}

pub async fn rename_same_dir(run: &ScenarioRun) {
    let dir = run.fid("dir1").await;
    run.walk("dir1/e1").await.unwrap();
    run.client
        .rename(&run.cred, (dir, b"e1"), (dir, b"e1r"))
        .await
        .unwrap();
    run.walk("dir1/e2").await.unwrap();
    run.client
        .rename(&run.cred, (dir, b"e1r"), (dir, b"e2"))
        .await
        .unwrap();
}

pub async fn rename_cross_dir(run: &ScenarioRun) {
    let root = run.client.root();
    let dir1 = run.fid("dir1").await;
    let dir2 = run
        .client
        .mkdir(&run.cred, root, b"dir2", 0o777)
        .await
        .unwrap()
        .attr
        .fid;
    run.client.mkdir(&run.cred, dir1, b"sub", 0o777).await.unwrap();
    run.client
        .rename(&run.cred, (dir1, b"e2"), (dir2, b"e2x"))
        .await
        .unwrap();
    run.client
        .rename(&run.cred, (dir1, b"sub"), (dir2, b"sub"))
        .await
        .unwrap();
}

pub async fn hardlink(run: &ScenarioRun) {
    let (file, dir2) = (run.fid("dir1/file1").await, run.fid("dir2").await);
    let linked = run
        .client
        .link(&run.cred, file, dir2, b"link1")
        .await
        .unwrap()
        .attr;
    assert_eq!((linked.nlink, linked.fid), (2, file));
    let seen = run.walk("dir1/file1").await.unwrap().attr;
    assert_eq!((seen.nlink, seen.fid), (2, file));
}

pub async fn symlink(run: &ScenarioRun) {
    let dir2 = run.fid("dir2").await;
    let created = run
        .client
        .symlink(&run.cred, dir2, b"sym1", b"../dir1/file1")
        .await;
    let attr = created.unwrap().attr;
    assert_eq!((attr.mode, attr.size), (0o120_777, 13));
    let target = run.client.readlink(&run.cred, attr.fid).await.unwrap();
    assert_eq!(target, b"../dir1/file1"[..]);
    let file = run.open("dir1/file1", OpenFlags::READ).await;
    assert_eq!(run.read(&file, 100).await, b"hello\n");
    run.client.release(&file).await.unwrap();
}

pub async fn attributes(run: &ScenarioRun) {
    let file = run.fid("dir1/file1").await;
    let set = |set: SetAttr| async move { run.client.setattr(&run.cred, file, &set, None).await.unwrap() };
    let unchanged = SetAttr::default;
    set(SetAttr {
        mode: Some(0o640),
        ..unchanged()
    })
    .await;
    set(SetAttr {
        uid: Some(1000),
        gid: Some(1001),
        ..unchanged()
    })
    .await;
    // 2020-02-02 02:02:02
    let then = Time::new(1_580_608_922, 0);
    set(SetAttr {
        atime: Some(SetTime::At(then)),
        mtime: Some(SetTime::At(then)),
        ..unchanged()
    })
    .await;
    let attr = run.walk("dir1/file1").await.unwrap().attr;
    assert_eq!(
        (attr.mode, attr.uid, attr.gid, attr.size),
        (0o100_640, 1000, 1001, 6)
    );
    assert_eq!((attr.nlink, attr.atime, attr.mtime), (2, then, then));
}

pub async fn chmod_shared(run: &ScenarioRun) {
    let file = run.fid("dir1/file1").await;
    let set = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    run.client.setattr(&run.cred, file, &set, None).await.unwrap();
}

pub async fn statfs(run: &ScenarioRun) {
    let space = run.client.statfs().await.unwrap();
    // The values of df and lfs df, in KiB.
    let kib = |blocks: u64| blocks * u64::from(space.bsize) / 1024;
    assert_eq!(kib(space.blocks), 1_908_608);
    assert_eq!(kib(space.bavail), 1_758_052);
    assert_eq!((space.files, space.ffree), (130_893, 128_299));
    let osts = run.client.ost_space().await;
    let free: Vec<_> = osts.iter().map(|(i, s)| (i.0, s.os_files, s.os_ffree)).collect();
    assert_eq!(free, [(0, 65536, 64150), (1, 65536, 64149)]);
    let mdts = run.client.mdt_space().await;
    let free: Vec<_> = mdts.iter().map(|(i, s)| (*i, s.os_files, s.os_ffree)).collect();
    assert_eq!(free, [(0, 419_432, 417_151), (1, 419_432, 419_119)]);
}

pub async fn fid2path(run: &ScenarioRun) {
    let (fid, _) = run.client.walk(&run.cred, b"dir1/file1", false).await.unwrap();
    assert_eq!(fid, Fid::new(0x2_0000_0402, 2, 0));
    assert_eq!(
        run.client.fid2path(&Cred::root(), fid).await.unwrap(),
        [&b"dir1/file1"[..], b"dir2/link1"]
    );
}

pub async fn permissions(run: &ScenarioRun) {
    let root = run.client.root();
    let user = client::Cred::user(1000, 1000);
    let result = run.client.lookup(&user, root, b"dir1").await.map(|f| f.attr);
    assert_eq!(result, Err(Errno::EACCES));
}

pub async fn idle(_run: &ScenarioRun) {
    tokio::time::sleep(Duration::from_secs(30)).await;
}
