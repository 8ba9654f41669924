//! Scenarios with directories on several MDTs.

use super::names::{names, touch_one};
use crate::captured_servers::scenario_run::ScenarioRun;
use bytes::Bytes;
use wire::{
    Errno, Fid, LMV_INHERIT_DEFAULT_STRIPED, LMV_OFFSET_DEFAULT, LMV_USER_MAGIC, LmvUserMdV1, WireStruct,
};

/// The layout that `lfs mkdir -i INDEX` requests.
pub fn on_mdt(index: u32) -> Bytes {
    LmvUserMdV1 {
        lum_magic: LMV_USER_MAGIC,
        lum_stripe_offset: index,
        ..LmvUserMdV1::default()
    }
    .to_bytes()
}

/// The layout that `lfs mkdir -c COUNT` requests.
pub fn stripes(count: i32) -> Bytes {
    LmvUserMdV1 {
        lum_magic: LMV_USER_MAGIC,
        lum_stripe_count: count,
        lum_stripe_offset: LMV_OFFSET_DEFAULT,
        lum_max_inherit: LMV_INHERIT_DEFAULT_STRIPED as u8,
        ..LmvUserMdV1::default()
    }
    .to_bytes()
}

/// Makes a directory that does not exist, and looks it up.
pub async fn mkdir(run: &ScenarioRun, name: &str, layout: Bytes) -> Fid {
    let root = run.client.root();
    assert_eq!(run.walk(name).await.map(|f| f.attr), Err(Errno::ENOENT));
    run.client
        .mkdir_with(&run.cred, root, name.as_bytes(), 0o777, layout)
        .await
        .unwrap();
    run.fid(name).await
}

pub async fn remote_directory(run: &ScenarioRun) {
    let root = run.client.root();
    run.client.getattr(&run.cred, root).await.unwrap();
    let dir = mkdir(run, "rdir", on_mdt(1)).await;
    assert_eq!(run.client.mdt_of(dir).await, Ok(1));
    let file = run.create(dir, "rf").await;
    run.write(&file, 0, b"x\n").await;
    run.client.release(&file).await.unwrap();
    run.drop_caches().await;
    let found = run.walk("rdir").await.unwrap().attr;
    assert_eq!((found.fid, found.mode, found.nlink), (dir, 0o040_755, 2));
    assert_eq!(names(run, dir).await, ["rf"]);
    let attr = run.walk("rdir/rf").await.unwrap().attr;
    assert_eq!((attr.mode, attr.size), (0o100_644, 2));
    run.client.unlink(&run.cred, dir, b"rf").await.unwrap();
    run.client.rmdir(&run.cred, root, b"rdir").await.unwrap();
}

pub async fn striped_directory(run: &ScenarioRun) {
    let root = run.client.root();
    run.client.getattr(&run.cred, root).await.unwrap();
    let dir = mkdir(run, "sdir", stripes(2)).await;
    // Each name has the MDT that the captured client chose.
    let mut expected = Vec::new();
    for i in 1..=8 {
        let name = format!("s{i}");
        let file = touch_one(run, dir, &name).await;
        assert_eq!(run.client.mdt_of(file).await, Ok(i % 2), "{name}");
        expected.push(name);
    }
    run.drop_caches().await;
    let found = run.walk("sdir").await.unwrap().attr;
    assert_eq!((found.fid, found.mode, found.nlink), (dir, 0o040_755, 2));
    assert_eq!((found.size, found.blocks), (8192, 16), "both stripes");
    assert_eq!(names(run, dir).await, expected);
    for name in &expected {
        let attr = run.walk(&format!("sdir/{name}")).await.unwrap().attr;
        assert_eq!((attr.mode, attr.size), (0o100_644, 0), "{name}");
    }
    let rename = run.client.rename(&run.cred, (dir, b"s1"), (dir, b"s1renamed"));
    rename.await.unwrap();
    expected[0] = "s1renamed".to_owned();
    for name in &expected {
        run.client.unlink(&run.cred, dir, name.as_bytes()).await.unwrap();
    }
    run.client.rmdir(&run.cred, root, b"sdir").await.unwrap();
}

pub async fn rename_and_link(run: &ScenarioRun) {
    let root = run.client.root();
    run.client.getattr(&run.cred, root).await.unwrap();
    let remote = mkdir(run, "rdir2", on_mdt(1)).await;
    touch_one(run, remote, "a").await;
    let dir1 = run.fid("dir1").await;
    let file = run.fid("rdir2/a").await;
    assert_eq!(
        run.walk("dir1/a_from_mdt1").await.map(|f| f.attr),
        Err(Errno::ENOENT)
    );
    run.client
        .rename(&run.cred, (remote, b"a"), (dir1, b"a_from_mdt1"))
        .await
        .unwrap();
    // The name is on MDT0, the file on MDT1.
    assert_eq!(run.fid("dir1/a_from_mdt1").await, file);
    assert_eq!(run.client.mdt_of(file).await, Ok(1));
    run.client.link(&run.cred, file, remote, b"back").await.unwrap();
    run.drop_caches().await;
    for path in ["dir1/a_from_mdt1", "rdir2/back"] {
        let attr = run.walk(path).await.unwrap().attr;
        assert_eq!((attr.fid, attr.nlink), (file, 2), "{path}");
    }
    assert_eq!(names(run, remote).await, ["back"]);
    let listed = names(run, dir1).await;
    assert_eq!(listed, ["a_from_mdt1", "f64k", "fifo1", "file1"]);
}
