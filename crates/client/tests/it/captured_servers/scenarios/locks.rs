//! Scenarios with conflicting locks of other clients, and with programs' file locks.

use crate::captured_servers::scenario_run::ScenarioRun;
use client::{FlockRange, FlockType, OpenFlags};

pub async fn flock(run: &ScenarioRun) {
    let file = run.open("dir1/file1", OpenFlags::READ_WRITE).await;
    let range = |ty| FlockRange {
        ty,
        start: 0,
        end: FlockRange::END,
        owner: 1,
        pid: 100,
    };
    for ty in [FlockType::Write, FlockType::Unlock] {
        run.client
            .setlk(&run.cred, file.fid, range(ty), true)
            .await
            .unwrap();
    }
    run.client.release(&file).await.unwrap();
}

pub async fn other_client_reads_dirty_data(run: &ScenarioRun) {
    let dir = run.fid("dir1").await;
    let file = run.create(dir, "dirty1").await;
    run.write(&file, 0, &[b'D'; 102_400]).await;
    run.client.release(&file).await.unwrap();
    run.send_callbacks_of_others().await;
}

pub async fn glimpse(run: &ScenarioRun) {
    let dir = run.fid("dir1").await;
    let file = run.create(dir, "dirty2").await;
    run.write(&file, 0, &vec![0; 70_000]).await;
    run.send_callbacks_of_others().await;
    run.client.release(&file).await.unwrap();
}

pub async fn directory_revoked(run: &ScenarioRun) {
    let dir = run.fid("dir2").await;
    let handle = run.client.opendir(&run.cred, dir).await.unwrap();
    let before = run.client.readdir(&handle, 0).await.unwrap().len();
    drop(handle);
    run.send_callbacks_of_others().await;
    let handle = run.client.opendir(&run.cred, dir).await.unwrap();
    assert_eq!(run.client.readdir(&handle, 0).await.unwrap().len(), before + 1);
}

pub async fn append_in_turn(run: &ScenarioRun) {
    let dir = run.fid("dir1").await;
    let append = OpenFlags {
        write: true,
        append: true,
        ..OpenFlags::default()
    };
    for line in [b"A1\n", b"A2\n"] {
        let created = run.client.create(&run.cred, dir, b"pp", 0o666, append).await;
        let (_, file) = created.unwrap();
        run.write(&file, 0, line).await;
        run.client.release(&file).await.unwrap();
        run.send_callbacks_of_others().await;
    }
}

pub async fn another_truncates(run: &ScenarioRun) {
    let dir = run.fid("dir1").await;
    let file = run.create(dir, "tr").await;
    run.write(&file, 0, b"0123456789\n").await;
    run.client.release(&file).await.unwrap();
    run.send_callbacks_of_others().await;
    assert_eq!(run.walk("dir1/tr").await.unwrap().attr.size, 0);
}
