//! Tests with two clients: a change by one revokes the other's cached state.

use wire::{
    Errno, Fid, MDS_ATTR_MODE, MDS_FMODE_READ, MDS_INODELOCK_LOOKUP as LOOKUP,
    MDS_INODELOCK_UPDATE as UPDATE, MDS_OPEN_CREAT, MdtRecSetattr,
};

use crate::fixture::Fixture;

#[tokio::test]
async fn create_revokes_the_directorys_pages() {
    let f = Fixture::new(0).await;
    let (a, b) = (f.client().await, f.client().await);
    let d = a.mkdir(Fid::ROOT, "d").await;
    a.lock_pages(d).await;
    b.make(d, "x", 0o010666, "").await.unwrap();
    assert_eq!(*a.revoked.lock(), [(d, UPDATE)]);
    assert_eq!(a.readdir(d).await, [".", "..", "x"]);
}

#[tokio::test]
async fn unlink_and_rename_revoke_the_entry() {
    let f = Fixture::new(0).await;
    let (a, b) = (f.client().await, f.client().await);
    let x = a.make(Fid::ROOT, "x", 0o010666, "").await.unwrap();
    a.getattr(Fid::ROOT, "x").await;
    b.rename((Fid::ROOT, "x"), (Fid::ROOT, "y")).await.unwrap();
    assert!(
        a.revoked
            .lock()
            .iter()
            .any(|(fid, bits)| *fid == x && bits & LOOKUP != 0)
    );
    a.revoked.lock().clear();
    a.getattr(Fid::ROOT, "y").await;
    b.unlink(Fid::ROOT, "y", false).await.unwrap();
    assert!(a.revoked.lock().iter().any(|(fid, _)| *fid == x));
}

#[tokio::test]
async fn chmod_revokes_attributes_and_permissions() {
    let f = Fixture::new(0).await;
    let (a, b) = (f.client().await, f.client().await);
    let d = a.mkdir(Fid::ROOT, "d").await;
    a.getattr(Fid::ROOT, "d").await;
    let rec = MdtRecSetattr {
        sa_fid: d,
        sa_valid: MDS_ATTR_MODE,
        sa_mode: 0o700,
        ..Default::default()
    };
    b.setattr(rec, &[]).await.unwrap();
    assert_eq!(a.revoked.lock().iter().filter(|(fid, _)| *fid == d).count(), 1);
    assert_eq!(a.getattr(Fid::ROOT, "d").await.body.mbo_mode, 0o040700);
}

#[tokio::test]
async fn client_does_not_wait_for_its_own_locks() {
    let f = Fixture::new(1).await;
    let a = f.client().await;
    for i in 0..20 {
        let name = format!("f{i}");
        a.lock_pages(Fid::ROOT).await;
        let created = a.open(Fid::ROOT, &name, MDS_OPEN_CREAT | MDS_FMODE_READ).await;
        a.getattr(Fid::ROOT, &name).await;
        a.close(created.fid(), created.handle()).await.unwrap();
        a.rename((Fid::ROOT, &name), (Fid::ROOT, "same")).await.unwrap();
    }
    a.unlink(Fid::ROOT, "same", false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_changes_by_many_clients_all_complete_and_leave_no_dangling_names() {
    let f = Fixture::new(2).await;
    let observer = f.client().await;
    let (d, e) = (
        observer.mkdir(Fid::ROOT, "d").await,
        observer.mkdir(Fid::ROOT, "e").await,
    );
    let mut tasks = Vec::new();
    for n in 0..6u64 {
        let c = f.client().await;
        tasks.push(tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(n);
            for _ in 0..60 {
                let (from, to) = if random.bool() { (d, e) } else { (e, d) };
                let [name, other] = [(); 2].map(|()| format!("n{}", random.u8(..4)));
                let possible = [
                    Errno::ENOENT,
                    Errno::EEXIST,
                    Errno::EISDIR,
                    Errno::ENOTDIR,
                    Errno::ENOTEMPTY,
                    Errno::EINVAL,
                ];
                let assert_possible = |e: Errno| assert!(possible.contains(&e), "{e}");
                match random.u8(..7) {
                    0 => c
                        .make(from, &name, 0o010666, "")
                        .await
                        .map(|_| ())
                        .unwrap_or_else(assert_possible),
                    1 => c
                        .make(from, &name, 0o040777, "")
                        .await
                        .map(|_| ())
                        .unwrap_or_else(assert_possible),
                    2 => c
                        .unlink(from, &name, random.bool())
                        .await
                        .map(|_| ())
                        .unwrap_or_else(assert_possible),
                    3 => c
                        .rename((from, &name), (to, &other))
                        .await
                        .map(|_| ())
                        .unwrap_or_else(assert_possible),
                    4 => c
                        .rename((from, &name), (from, &other))
                        .await
                        .map(|_| ())
                        .unwrap_or_else(assert_possible),
                    5 => {
                        let found = c.getattr(from, &name).await;
                        if found.has_lock() {
                            c.touch(found.fid())
                                .await
                                .map(|_| ())
                                .unwrap_or_else(assert_possible);
                        }
                    }
                    _ => {
                        c.lock_pages(from).await;
                        c.readdir(from).await;
                    }
                }
            }
            c.disconnect().await;
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    for dir in [d, e] {
        for name in observer.readdir(dir).await.iter().skip(2) {
            assert_eq!(
                observer.getattr(dir, name).await.status,
                0,
                "{name} leads to an inode"
            );
        }
    }
}
