//! Conflicting locks of other clients, and programs' file locks.

use crate::captured_servers::play::Play;
use client::{FlockRange, FlockType, OpenFlags};

pub async fn flock(play: &Play) {
    let file = play.open("dir1/file1", OpenFlags::READ_WRITE).await;
    let range = |ty| FlockRange {
        ty,
        start: 0,
        end: FlockRange::END,
        owner: 1,
        pid: 100,
    };
    for ty in [FlockType::Write, FlockType::Unlock] {
        play.client
            .setlk(&play.cred, file.fid, range(ty), true)
            .await
            .unwrap();
    }
    play.client.release(&file).await.unwrap();
}

pub async fn another_reads_dirty(play: &Play) {
    let dir = play.fid("dir1").await;
    let file = play.create(dir, "dirty1").await;
    play.write(&file, 0, &[b'D'; 102_400]).await;
    play.client.release(&file).await.unwrap();
    play.send_callbacks_of_others().await;
}

pub async fn glimpse(play: &Play) {
    let dir = play.fid("dir1").await;
    let file = play.create(dir, "dirty2").await;
    play.write(&file, 0, &vec![0; 70_000]).await;
    play.send_callbacks_of_others().await;
    play.client.release(&file).await.unwrap();
}

pub async fn directory_revoked(play: &Play) {
    let dir = play.fid("dir2").await;
    let handle = play.client.opendir(&play.cred, dir).await.unwrap();
    let before = play.client.readdir(&handle, 0).await.unwrap().len();
    drop(handle);
    play.send_callbacks_of_others().await;
    let handle = play.client.opendir(&play.cred, dir).await.unwrap();
    assert_eq!(play.client.readdir(&handle, 0).await.unwrap().len(), before + 1);
}

pub async fn append_in_turn(play: &Play) {
    let dir = play.fid("dir1").await;
    let append = OpenFlags {
        write: true,
        append: true,
        ..OpenFlags::default()
    };
    for line in [b"A1\n", b"A2\n"] {
        let created = play.client.create(&play.cred, dir, b"pp", 0o666, append).await;
        let (_, file) = created.unwrap();
        play.write(&file, 0, line).await;
        play.client.release(&file).await.unwrap();
        play.send_callbacks_of_others().await;
    }
}

pub async fn another_truncates(play: &Play) {
    let dir = play.fid("dir1").await;
    let file = play.create(dir, "tr").await;
    play.write(&file, 0, b"0123456789\n").await;
    play.client.release(&file).await.unwrap();
    play.send_callbacks_of_others().await;
    assert_eq!(play.walk("dir1/tr").await.unwrap().attr.size, 0);
}
