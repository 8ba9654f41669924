//! Tests of leases: the server revokes a client's lease when another client opens the file for
//! write or changes its size.

use wire::{
    CloseData, DISP_OPEN_LEASE, DISP_OPEN_LOCK, DISP_OPEN_OPEN, Errno, Fid, LCK_PW, LustreHandle,
    MDS_ATTR_SIZE, MDS_CLOSE_LAYOUT_SWAP, MDS_FMODE_READ, MDS_FMODE_WRITE, MDS_INODELOCK_OPEN as OPEN,
    MDS_OPEN_BY_FID, MDS_OPEN_CREAT, MDS_OPEN_LEASE, MDS_OPEN_LOCK, MDS_TRUNC_KEEP_LEASE, MdtRecSetattr,
    WireStruct,
};

use crate::fixture::Fixture;
use testbase::mds_client::{Client, Intent};

/// The flags of a Lustre client's lease request besides the mode.
const LEASE: u64 = MDS_OPEN_LEASE | MDS_OPEN_LOCK | MDS_OPEN_BY_FID;

/// Creates a file and closes it.
async fn create_file(c: &Client) -> Fid {
    let created = c.open(Fid::ROOT, "file", MDS_OPEN_CREAT | MDS_FMODE_WRITE).await;
    c.close(created.fid(), created.handle()).await.unwrap();
    created.fid()
}

/// Requests a lease; `own` is the cookie of a handle by which the client has the file open already,
/// or 0.
async fn open_with_lease(c: &Client, file: Fid, mode: u64, own: u64) -> Intent {
    c.open_from(own, (file, ""), LEASE | mode, &[]).await
}

/// Whether the client's lease was revoked.
fn is_revoked(c: &Client, file: Fid) -> bool {
    let revoked = c.revoked.lock();
    revoked.iter().any(|(fid, bits)| *fid == file && bits & OPEN != 0)
}

/// Truncates the file to 7 bytes; `bias` is the request's `sa_bias`.
async fn truncate(c: &Client, file: Fid, bias: u32) {
    let rec = MdtRecSetattr {
        sa_fid: file,
        sa_valid: MDS_ATTR_SIZE,
        sa_size: 7,
        sa_bias: bias,
        ..MdtRecSetattr::default()
    };
    c.setattr(rec, &[]).await.unwrap();
}

#[tokio::test]
async fn open_for_write_revokes_a_lease() {
    for flags in [MDS_FMODE_WRITE, MDS_FMODE_WRITE | MDS_OPEN_LOCK] {
        for mode in [MDS_FMODE_READ, MDS_FMODE_WRITE] {
            let f = Fixture::new(1).await;
            let (a, b) = (f.client().await, f.client().await);
            let file = create_file(&a).await;
            let lease = open_with_lease(&a, file, mode, 0).await;
            let steps = DISP_OPEN_OPEN | DISP_OPEN_LOCK | DISP_OPEN_LEASE;
            assert_eq!((lease.status, lease.disposition & steps), (0, steps));
            assert_eq!((lease.mode, lease.bits), (LCK_PW, OPEN));
            assert_ne!(lease.handle(), 0);
            assert_eq!(b.open(Fid::ROOT, "file", MDS_FMODE_READ).await.status, 0);
            b.getattr(Fid::ROOT, "file").await;
            assert!(!is_revoked(&a, file), "opens for read and lookups keep a lease");
            assert_eq!(b.open(Fid::ROOT, "file", flags).await.status, 0);
            assert!(is_revoked(&a, file));
            a.close(file, lease.handle()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn size_change_revokes_a_lease_unless_its_holder_keeps_it() {
    let f = Fixture::new(1).await;
    let (a, b) = (f.client().await, f.client().await);
    let file = create_file(&a).await;
    open_with_lease(&a, file, MDS_FMODE_WRITE, 0).await;
    truncate(&a, file, MDS_TRUNC_KEEP_LEASE).await;
    b.touch(file).await.unwrap();
    assert!(!is_revoked(&a, file));
    truncate(&b, file, 0).await;
    assert!(is_revoked(&a, file));
}

#[tokio::test]
async fn lease_is_ebusy_while_another_client_writes_or_has_a_lease() {
    let f = Fixture::new(1).await;
    let (a, b) = (f.client().await, f.client().await);
    let file = create_file(&a).await;
    let busy = Errno::EBUSY.status();
    let own = a.open(Fid::ROOT, "file", MDS_FMODE_WRITE).await.handle();
    assert_eq!(open_with_lease(&b, file, MDS_FMODE_READ, 0).await.status, busy);
    assert_eq!(
        open_with_lease(&b, file, MDS_FMODE_READ, own).await.status,
        busy,
        "another client's handle"
    );
    let first = open_with_lease(&a, file, MDS_FMODE_WRITE, own).await;
    assert_eq!(first.status, 0);
    assert_eq!(open_with_lease(&b, file, MDS_FMODE_READ, 0).await.status, busy);
    assert!(!is_revoked(&a, file), "a failed lease request revokes no lease");
    // A lease counts until its handle is closed, even if its lock is cancelled.
    a.cancel(first.lock_handle).await;
    a.close(file, own).await.unwrap();
    assert_eq!(open_with_lease(&b, file, MDS_FMODE_READ, 0).await.status, busy);
    a.close(file, first.handle()).await.unwrap();
    assert_eq!(open_with_lease(&b, file, MDS_FMODE_READ, 0).await.status, 0);
}

#[tokio::test]
async fn disconnect_releases_a_lease() {
    let f = Fixture::new(1).await;
    let (a, b) = (f.client().await, f.client().await);
    let file = create_file(&a).await;
    assert_eq!(open_with_lease(&a, file, MDS_FMODE_WRITE, 0).await.status, 0);
    a.disconnect().await;
    assert_eq!(open_with_lease(&b, file, MDS_FMODE_WRITE, 0).await.status, 0);
}

#[tokio::test]
async fn lease_without_lock_or_fid_or_with_create_is_eproto() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let file = create_file(&c).await;
    let refused = Errno::EPROTO.status();
    for flags in [
        MDS_OPEN_LEASE | MDS_OPEN_BY_FID,
        MDS_OPEN_LEASE | MDS_OPEN_LOCK,
        LEASE | MDS_OPEN_CREAT,
    ] {
        let result = c.open(file, "", flags | MDS_FMODE_READ).await;
        assert_eq!(
            (result.status, result.handle(), result.has_lock()),
            (refused, 0, false)
        );
    }
    let dir = c.mkdir(Fid::ROOT, "d").await;
    assert_eq!(
        open_with_lease(&c, dir, MDS_FMODE_READ, 0).await.status,
        Errno::EINVAL.status()
    );
}

#[tokio::test]
async fn failed_layout_swap_releases_the_lease() {
    let f = Fixture::new(1).await;
    let (a, b) = (f.client().await, f.client().await);
    let file = create_file(&a).await;
    let lease = open_with_lease(&a, file, MDS_FMODE_WRITE, 0).await;
    let rec = MdtRecSetattr {
        sa_fid: file,
        sa_bias: MDS_CLOSE_LAYOUT_SWAP,
        ..MdtRecSetattr::default()
    };
    let data = CloseData {
        cd_handle: LustreHandle {
            cookie: lease.lock_handle,
        },
        ..CloseData::default()
    };
    let closed = a.close_intent(lease.handle(), rec, vec![data.to_bytes()]).await;
    assert_eq!(closed.map(|r| r.status), Err(Errno::EINVAL));
    assert_eq!(b.open(Fid::ROOT, "file", MDS_FMODE_WRITE).await.status, 0);
    assert!(!is_revoked(&a, file), "the lease is already released");
}
