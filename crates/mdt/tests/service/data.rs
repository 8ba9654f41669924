//! Requests for data on the MDT: reads and writes, the value blocks of locks on the DOM bit, and
//! the requests that the MDT refuses.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use mdt::layout::{
    StripeRequest,
    composite::{ComponentRequest, to_default_layout},
};
use rpc::ReplyMsg;
use testbase::mds_client::Client;
use wire::{
    Errno, Fid, HasTimes, IT_BRW, IT_GLIMPSE, LCK_PR, LCK_PW, LDLM_ENQUEUE, LDLM_FL_HAS_INTENT, LDLM_IBITS,
    LdlmLockDesc, LdlmPolicyData, LdlmReply, LdlmRequest, LdlmResourceDesc, MDS_INODELOCK_DOM, MdtBody,
    NiobufRemote, OBD_BRW_SRVLOCK, OBD_FL_SHORT_IO, OBD_FL_SRVLOCK, OBD_MD_DOM_SIZE, OBD_MD_FLBLOCKS,
    OBD_MD_FLCTIME, OBD_MD_FLFLAGS, OBD_MD_FLMTIME, OBD_MD_FLSIZE, OBD_OBJECT_EOF, OST_GETATTR, OST_PUNCH,
    OST_READ, OST_WRITE, ObdIoobj, Obdo, OstBody, OstLvb, Time, Times, WireStruct,
};

use super::components::create;
use crate::fixture::Fixture;

const KIB: u64 = 1 << 10;
/// The end of the part on the MDT.
const ON_MDT: u64 = 64 * KIB;

/// The cookie of the next lock request; other requests of the clients use lower ones.
static NEXT_COOKIE: AtomicU64 = AtomicU64::new(1 << 41);

/// `lfs setstripe -E 64K -L mdt`.
pub(crate) fn on_mdt() -> Bytes {
    to_default_layout(&[ComponentRequest {
        extent: 0..ON_MDT,
        on_mdt: true,
        striping: StripeRequest::default(),
    }])
}

fn oa(file: Fid) -> Obdo {
    let mut oa = Obdo {
        o_oi: file.into(),
        o_valid: OBD_MD_FLMTIME | OBD_MD_FLCTIME,
        ..Obdo::default()
    };
    oa.set_times(Times {
        mtime: Time::secs(7),
        ctime: Time::secs(7),
        ..Times::default()
    });
    oa
}

/// A read or write of one range inside the messages. With `lock` the MDT takes the lock.
async fn brw(
    c: &Client,
    opc: u32,
    file: Fid,
    (at, len): (u64, u32),
    data: &[u8],
    lock: bool,
) -> Result<ReplyMsg, Errno> {
    let mut oa = oa(file);
    oa.o_valid |= OBD_MD_FLFLAGS;
    oa.o_flags = OBD_FL_SHORT_IO;
    let object = ObdIoobj {
        ioo_oid: oa.o_oi,
        ioo_bufcnt: 1,
        ..ObdIoobj::default()
    };
    let range = NiobufRemote {
        rnb_offset: at,
        rnb_len: len,
        rnb_flags: if lock { OBD_BRW_SRVLOCK } else { 0 },
    };
    let data = Bytes::copy_from_slice(data);
    let bufs = vec![
        OstBody { oa }.to_bytes(),
        object.to_bytes(),
        range.to_bytes(),
        Bytes::new(),
        data,
    ];
    c.call(opc, bufs).await
}

pub(crate) async fn write(c: &Client, file: Fid, at: u64, data: &[u8]) -> Result<ReplyMsg, Errno> {
    brw(c, OST_WRITE, file, (at, data.len() as u32), data, true).await
}

async fn read(c: &Client, file: Fid, at: u64, len: u32) -> Result<Bytes, Errno> {
    Ok(brw(c, OST_READ, file, (at, len), b"", true).await?.bytes(2))
}

/// Sends a request for the DOM bit, with this intent and these flags.
pub(crate) async fn lock(c: &Client, file: Fid, mode: u32, flags: u64, intent: Option<u64>) -> ReplyMsg {
    let dlm = LdlmRequest {
        lock_flags: flags as u32,
        lock_count: 1,
        lock_desc: LdlmLockDesc {
            l_resource: LdlmResourceDesc {
                lr_type: LDLM_IBITS,
                lr_name: file.res_id(),
                ..Default::default()
            },
            l_req_mode: mode,
            l_policy_data: LdlmPolicyData::inodebits(MDS_INODELOCK_DOM, 0),
            ..Default::default()
        },
        lock_handle: [NEXT_COOKIE.fetch_add(1, Ordering::Relaxed), 0],
    };
    let mut bufs = vec![dlm.to_bytes()];
    bufs.extend(intent.map(|opc| Bytes::copy_from_slice(&opc.to_le_bytes())));
    c.call(LDLM_ENQUEUE, bufs).await.unwrap()
}

pub(crate) fn is_granted(reply: &ReplyMsg) -> bool {
    let rep: LdlmReply = reply.get(1).unwrap();
    rep.lock_desc.l_granted_mode != 0
}

#[tokio::test]
async fn written_bytes_are_read_and_the_reply_has_a_transaction() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let file = create(&c, "f", &on_mdt()).await.fid();
    let written = write(&c, file, 10, b"data").await.unwrap();
    assert!(written.body.pb_transno > 0);
    let oa = written.get::<OstBody>(1).unwrap().oa;
    assert_eq!((oa.o_size, oa.o_blocks, oa.o_mtime), (14, 8, 7));
    assert_eq!(read(&c, file, 8, 100).await.unwrap(), &b"\0\0data"[..]);
    assert_eq!(read(&c, file, 14, 100).await.unwrap(), &b""[..]);
    let mut punch = self::oa(file);
    punch.o_valid |= OBD_MD_FLSIZE | OBD_MD_FLBLOCKS | OBD_MD_FLFLAGS;
    (punch.o_size, punch.o_blocks, punch.o_flags) = (12, OBD_OBJECT_EOF, OBD_FL_SRVLOCK);
    c.call(OST_PUNCH, vec![OstBody { oa: punch }.to_bytes()])
        .await
        .unwrap();
    assert_eq!(
        read(&c, file, 0, 100).await.unwrap(),
        &b"\0\0\0\0\0\0\0\0\0\0da"[..]
    );
    let attr = c
        .call(OST_GETATTR, vec![OstBody { oa: self::oa(file) }.to_bytes()])
        .await;
    assert_eq!(attr.unwrap().get::<OstBody>(1).unwrap().oa.o_size, 12);
}

#[tokio::test]
async fn requests_for_other_files_and_bytes_are_refused() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let file = create(&c, "f", &on_mdt()).await.fid();
    let striped = c
        .open(Fid::ROOT, "g", wire::MDS_OPEN_CREAT | wire::MDS_FMODE_WRITE)
        .await
        .fid();
    let missing = Fid::new(file.f_seq, 0xffff, 0);
    let status = async |file, at| write(&c, file, at, b"data").await.map(drop);
    assert_eq!(status(striped, 0).await, Err(Errno::EINVAL));
    assert_eq!(status(Fid::ROOT, 0).await, Err(Errno::EINVAL));
    assert_eq!(status(missing, 0).await, Err(Errno::ENOENT));
    assert_eq!(status(file, ON_MDT - 3).await, Err(Errno::EFBIG));
    assert_eq!(status(file, ON_MDT - 4).await, Ok(()));
    assert_eq!(read(&c, striped, 0, 4).await, Err(Errno::EINVAL));
}

#[tokio::test]
async fn lock_on_the_dom_bit_has_a_value_block_and_a_glimpse_revokes_nothing() {
    let f = Fixture::new(1).await;
    let (a, b) = (f.client().await, f.client().await);
    let created = create(&a, "f", &on_mdt()).await;
    let file = created.fid();
    a.cancel(created.lock_handle).await;
    write(&a, file, 0, b"12345").await.unwrap();
    let locked = lock(&a, file, LCK_PW, 0, None).await;
    assert!(is_granted(&locked));
    let size = |reply: &ReplyMsg| reply.get::<OstLvb>(2).unwrap().lvb_size;
    assert_eq!(size(&locked), 5);
    brw(&a, OST_WRITE, file, (5, 2), b"67", false).await.unwrap();
    let glimpse = lock(&b, file, LCK_PR, LDLM_FL_HAS_INTENT, None).await;
    assert_eq!((is_granted(&glimpse), size(&glimpse)), (false, 7));
    assert!(a.revoked.lock().is_empty());
    // Lustre's clients send these with an intent, and take the size from the body.
    for (intent, granted) in [(IT_GLIMPSE, false), (IT_BRW, true)] {
        let locked = lock(&b, file, LCK_PR, LDLM_FL_HAS_INTENT, Some(intent)).await;
        let body: MdtBody = locked.get(2).unwrap();
        assert_eq!(
            (body.mbo_valid & OBD_MD_DOM_SIZE, body.mbo_dom_size),
            (OBD_MD_DOM_SIZE, 7)
        );
        // A lock that waits for the other client is granted by a callback.
        let rep: LdlmReply = locked.get(1).unwrap();
        assert_eq!(rep.lock_handle.cookie != 0, granted);
    }
}
