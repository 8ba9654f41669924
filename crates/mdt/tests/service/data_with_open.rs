//! Data on the MDT with the reply to an open: the DOM bit of the lock, the size, the bytes, and the
//! parameters.

use std::sync::Arc;

use testbase::mds_client::{Client, Intent};
use wire::{
    Fid, LCK_PR, LCK_PW, LdlmReply, MDS_FMODE_READ, MDS_FMODE_WRITE, MDS_INODELOCK_DOM as DOM,
    MDS_INODELOCK_LAYOUT as LAYOUT, MDS_INODELOCK_LOOKUP, MDS_INODELOCK_PERM, MDS_INODELOCK_UPDATE,
    MDS_OPEN_BY_FID, MDS_OPEN_LOCK, MDS_OPEN_TRUNC, NiobufRemote, OBD_MD_DOM_SIZE, WireStruct, format::bufs,
};

use super::{
    components::create,
    data::{is_granted, lock, on_mdt, write},
};
use crate::fixture::{Fixture, wait_until};

const READ: u64 = MDS_OPEN_BY_FID | MDS_FMODE_READ;
const WRITE: u64 = MDS_OPEN_BY_FID | MDS_FMODE_WRITE;
/// The bits of an open's lock without data.
const INODE: u64 = MDS_INODELOCK_LOOKUP | MDS_INODELOCK_UPDATE | MDS_INODELOCK_PERM | LAYOUT;

/// Opens a file by FID.
async fn open(c: &Client, file: Fid, flags: u64) -> Intent {
    let opened = c.open(file, "", flags).await;
    assert_eq!(opened.status, 0);
    opened
}

/// The data in a reply; `None`: the reply has no buffer for data.
fn data(opened: &Intent) -> Option<Vec<u8>> {
    let buf = opened.reply.buf(bufs::OPEN_REPLY_DATA);
    let niobuf = NiobufRemote::from_bytes(buf).ok()?;
    assert_eq!(niobuf.rnb_offset, 0);
    assert_eq!(buf.len(), NiobufRemote::SIZE + niobuf.rnb_len as usize);
    Some(buf[NiobufRemote::SIZE..].to_vec())
}

/// The size of the data in a reply, if it has one.
fn size(opened: &Intent) -> Option<u64> {
    (opened.body.mbo_valid & OBD_MD_DOM_SIZE != 0).then_some(opened.body.mbo_dom_size)
}

/// A file with this data, on which nobody has a lock.
async fn file_with(c: &Client, name: &str, bytes: &[u8]) -> Fid {
    let created = create(c, name, &on_mdt()).await;
    c.cancel(created.lock_handle).await;
    write(c, created.fid(), 0, bytes).await.unwrap();
    created.fid()
}

async fn two_clients(f: &Fixture) -> [Arc<Client>; 2] {
    [f.client().await, f.client().await]
}

fn set(f: &Fixture, name: &str, value: &str) {
    let set = f.params.set(&format!("mdt.*.{name}"), value);
    assert_eq!(set.map(|all| all.len()), Ok(1));
}

#[tokio::test]
async fn reply_has_the_lock_and_the_data() {
    let f = Fixture::new(1).await;
    let [a, b] = two_clients(&f).await;
    let file = file_with(&a, "f", b"hello").await;
    for c in [&a, &b] {
        let opened = open(c, file, READ).await;
        assert_eq!(
            (opened.mode, opened.bits),
            (LCK_PR, INODE | DOM),
            "as in capture t1_dom"
        );
        assert_eq!((opened.lock_fid, size(&opened)), (file, Some(5)));
        assert_eq!(data(&opened).unwrap(), b"hello");
    }
    assert!(a.revoked.lock().is_empty());
}

#[tokio::test]
async fn lookup_has_the_lock_and_the_size() {
    let f = Fixture::new(1).await;
    let [a, b] = two_clients(&f).await;
    let file = file_with(&a, "f", b"hello").await;
    for c in [&a, &b] {
        let found = c.getattr(Fid::ROOT, "f").await;
        assert_eq!(
            (found.mode, found.bits, size(&found)),
            (LCK_PR, INODE | DOM, Some(5))
        );
    }
    // The reader of the attributes does not delay a writer: it gets the data later.
    let opened = open(&a, file, WRITE).await;
    assert_eq!((opened.mode, opened.bits & DOM), (LCK_PR, 0));
    assert!(b.revoked.lock().is_empty());
}

#[tokio::test]
async fn creator_and_writer_get_the_lock_for_writing() {
    let f = Fixture::new(1).await;
    let [a, b] = two_clients(&f).await;
    let created = create(&a, "f", &on_mdt()).await;
    assert_eq!(
        (created.mode, created.bits & (INODE | DOM)),
        (LCK_PW, INODE | DOM)
    );
    assert_eq!((size(&created), data(&created)), (Some(0), Some(Vec::new())));
    let file = created.fid();
    // The open revokes nothing, and reads no data without the lock.
    let opened = open(&b, file, READ).await;
    assert_eq!((opened.bits & DOM, size(&opened), data(&opened)), (0, None, None));
    assert!(a.revoked.lock().is_empty());
    a.cancel(created.lock_handle).await;
    b.cancel(opened.lock_handle).await;
    write(&a, file, 0, b"12").await.unwrap();
    let opened = open(&a, file, WRITE).await;
    assert_eq!((opened.mode, opened.bits), (LCK_PW, INODE | DOM));
    assert_eq!((size(&opened), data(&opened)), (Some(2), Some(Vec::new())));
    a.cancel(opened.lock_handle).await;
    let opened = open(&a, file, READ | WRITE | MDS_OPEN_TRUNC).await;
    assert_eq!((size(&opened), data(&opened)), (Some(2), Some(Vec::new())));
}

#[tokio::test]
async fn writer_shares_the_inode_with_readers_of_attributes_but_not_of_data() {
    let f = Fixture::new(1).await;
    let [a, b] = two_clients(&f).await;
    let file = file_with(&a, "f", b"12").await;
    // The other client has the attributes: the writer gets the data alone.
    let data_lock = lock(&a, file, LCK_PW, 0, None).await;
    assert_eq!(b.getattr(Fid::ROOT, "f").await.bits, INODE);
    let rep: LdlmReply = data_lock.get(1).unwrap();
    a.cancel(rep.lock_handle.cookie).await;
    let opened = open(&a, file, WRITE).await;
    assert_eq!((opened.mode, opened.bits, size(&opened)), (LCK_PW, DOM, Some(2)));
    a.cancel(opened.lock_handle).await;
    // The other client has the data, too: both share the attributes.
    let reader = open(&b, file, READ).await;
    assert_eq!(reader.bits & DOM, DOM);
    let opened = open(&a, file, WRITE).await;
    assert_eq!((opened.mode, opened.bits, size(&opened)), (LCK_PR, INODE, None));
    assert!(b.revoked.lock().is_empty());
}

#[tokio::test]
async fn data_comes_only_with_the_whole_lock_and_if_it_fits() {
    let f = Fixture::new(1).await;
    let [a, b] = two_clients(&f).await;
    let file = file_with(&a, "f", b"12345").await;
    // An open lock has another mode than data needs.
    let opened = open(&a, file, READ | MDS_OPEN_LOCK).await;
    assert_eq!((opened.bits & DOM, data(&opened)), (0, None));
    // The test's client has room for 4096 bytes with all buffers.
    let large = file_with(&a, "large", &[7; 4096]).await;
    let opened = open(&a, large, READ).await;
    assert_eq!((size(&opened), data(&opened)), (Some(4096), Some(Vec::new())));
    let striped = a
        .open(Fid::ROOT, "g", wire::MDS_OPEN_CREAT | MDS_FMODE_WRITE)
        .await;
    assert_eq!((striped.bits & DOM, data(&striped)), (0, None));
    let writer = lock(&b, file, LCK_PW, 0, None).await;
    assert!(is_granted(&writer));
    let opened = open(&a, file, READ).await;
    assert_eq!((opened.mode, opened.bits, size(&opened)), (LCK_PR, INODE, None));
}

#[tokio::test]
async fn parameters_turn_lock_and_data_off_or_revoke_other_locks() {
    let f = Fixture::new(1).await;
    let [a, b] = two_clients(&f).await;
    let file = file_with(&a, "f", b"12345").await;
    set(&f, "dom_read_open", "0");
    let opened = open(&a, file, READ).await;
    assert_eq!(
        (opened.bits & DOM, size(&opened), data(&opened)),
        (DOM, Some(5), Some(Vec::new()))
    );
    a.cancel(opened.lock_handle).await;
    set(&f, "dom_read_open", "1");
    set(&f, "dom_lock", "never");
    let opened = open(&a, file, READ).await;
    assert_eq!((opened.bits & DOM, size(&opened), data(&opened)), (0, None, None));
    set(&f, "dom_lock", "always");
    let writer = lock(&b, file, LCK_PW, 0, None).await;
    assert!(is_granted(&writer));
    let opened = open(&a, file, READ).await;
    assert_eq!((opened.bits & DOM, data(&opened)), (DOM, Some(b"12345".to_vec())));
    wait_until(|| b.revoked.lock().iter().any(|(fid, _)| *fid == file)).await;
    for value in ["sometimes", "3"] {
        assert!(f.params.set("mdt.*.dom_lock", value).is_err());
    }
}
