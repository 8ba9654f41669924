//! Scenarios with extended attributes, ACLs and layouts.

use crate::captured_servers::scenario_run::ScenarioRun;
use client::FileLayout;

pub async fn user(run: &ScenarioRun) {
    let file = run.fid("dir1/file1").await;
    let (client, cred) = (&run.client, &run.cred);
    client.setxattr(cred, file, b"user.foo", b"bar", 0).await.unwrap();
    client
        .setxattr(cred, file, b"trusted.t", &[1, 2], 0)
        .await
        .unwrap();
    assert_eq!(
        client.getxattr(cred, file, b"user.foo").await.unwrap(),
        b"bar"[..]
    );
    client.removexattr(cred, file, b"user.foo").await.unwrap();
}

pub async fn acl(run: &ScenarioRun) {
    let file = run.fid("dir1/file1").await;
    let (client, cred) = (&run.client, &run.cred);
    // user::rw-, user:1234:rw-, group::r--, mask::rw-, other::---
    let entries = [
        (1, 6, u32::MAX),
        (2, 6, 1234),
        (4, 4, u32::MAX),
        (16, 6, u32::MAX),
        (32, 0, u32::MAX),
    ];
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        acl.extend_from_slice(&u16::to_le_bytes(tag));
        acl.extend_from_slice(&u16::to_le_bytes(perm));
        acl.extend_from_slice(&id.to_le_bytes());
    }
    client
        .setxattr(cred, file, b"system.posix_acl_access", &acl, 0)
        .await
        .unwrap();
    let read = client
        .getxattr(cred, file, b"system.posix_acl_access")
        .await
        .unwrap();
    assert_eq!(read, acl);
}

pub async fn default_layout(run: &ScenarioRun) {
    let (client, cred) = (&run.client, &run.cred);
    let dir = client
        .mkdir(cred, client.root(), b"ds", 0o777)
        .await
        .unwrap()
        .attr
        .fid;
    let file = run.create(dir, "x").await;
    let layout = client.getstripe(cred, file.fid).await.unwrap();
    assert!(!FileLayout::parse(layout).unwrap().is_empty());
    client.release(&file).await.unwrap();
}
