//! Object targets that join a mounted file system.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use client::{Client, Cred, OpenFlags};
use std::time::Duration;
use testkit::Cluster;
use tokio::time::timeout;

/// Limit of a wait for the new target.
const SOON: Duration = Duration::from_secs(120);

async fn write(client: &Client, name: &str) {
    let (root, dir) = (Cred::root(), client.root());
    let (found, file) = client
        .create(&root, dir, name.as_bytes(), 0o644, OpenFlags::READ_WRITE)
        .await
        .unwrap();
    drop(found);
    client
        .write(&file, 0, Bytes::copy_from_slice(name.as_bytes()))
        .await
        .unwrap();
    client.fsync(&file, false).await.unwrap();
    client.release(&file).await.unwrap();
}

#[tokio::test]
async fn existing_mounts_use_files_on_a_new_object_target() {
    let mut cluster = Cluster::start(1).await;
    let clients = [cluster.mount().await, cluster.mount().await];
    write(&clients[0], "before").await;
    cluster.add_ost().await;
    timeout(SOON, cluster.mdt.osts_ready(2)).await.unwrap();
    // About half of the files are on the new target, which the mounts may not know yet.
    for i in 0..20 {
        write(&clients[0], &format!("f{i}")).await;
    }
    for client in &clients {
        let (root, dir) = (Cred::root(), client.root());
        for i in 0..20 {
            let name = format!("f{i}");
            let found = client.lookup(&root, dir, name.as_bytes()).await.unwrap();
            let file = client.open(&root, found.attr.fid, OpenFlags::READ).await.unwrap();
            assert_eq!(
                client.read(&file, 0, 100).await.unwrap().concat(),
                name.as_bytes()
            );
            client.release(&file).await.unwrap();
        }
    }
    for client in clients {
        client.umount().await;
    }
    cluster.stop().await;
}
