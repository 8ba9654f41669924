//! Tests of directories' default layouts over MDTs.

use bytes::Bytes;
use testbase::mds_client::Client;
use wire::{
    Errno, Fid, LMV_INHERIT_NONE, LMV_OFFSET_DEFAULT, LMV_USER_MAGIC, LmvUserMdV1, MDS_GETATTR, MdtBody,
    MdtRecSetattr, OBD_MD_DEFAULT_MEA, OBD_MD_FLDIREA, WireStruct, format::bufs,
};

use crate::fixture::Fixture;

fn any_mdt(levels: u8, levels_in_turn: u8) -> LmvUserMdV1 {
    LmvUserMdV1 {
        lum_magic: LMV_USER_MAGIC,
        lum_stripe_count: 1,
        lum_stripe_offset: LMV_OFFSET_DEFAULT,
        lum_max_inherit: levels,
        lum_max_inherit_rr: levels_in_turn,
        ..LmvUserMdV1::default()
    }
}

async fn set(c: &Client, dir: Fid, layout: LmvUserMdV1) -> Result<(), Errno> {
    let rec = MdtRecSetattr {
        sa_fid: dir,
        ..MdtRecSetattr::default()
    };
    c.setattr(rec, &layout.to_bytes()).await.map(drop)
}

/// The default layout in the reply to a getattr.
async fn get(c: &Client, dir: Fid) -> Option<LmvUserMdV1> {
    let request = MdtBody {
        mbo_fid1: dir,
        mbo_valid: OBD_MD_FLDIREA | OBD_MD_DEFAULT_MEA,
        mbo_eadatasize: 4096,
        ..MdtBody::default()
    };
    let reply = c.call(MDS_GETATTR, vec![request.to_bytes(), Bytes::new()]).await;
    let reply = reply.unwrap();
    let body: MdtBody = reply.get(bufs::MDT_BODY).unwrap();
    let layout = LmvUserMdV1::from_bytes(reply.buf(bufs::MDT_MD)).ok();
    assert_eq!(body.mbo_valid & OBD_MD_DEFAULT_MEA != 0, layout.is_some());
    layout
}

#[tokio::test(start_paused = true)]
async fn new_directories_inherit_a_default_layout_for_some_levels() {
    let mut f = Fixture::new(1).await;
    let c = f.client().await;
    let top = c.mkdir(Fid::ROOT, "top").await;
    assert_eq!(get(&c, top).await, None);
    set(&c, top, any_mdt(2, 1)).await.unwrap();
    let middle = c.mkdir(top, "middle").await;
    let bottom = c.mkdir(middle, "bottom").await;
    f.restart().await;
    let c = f.client().await;
    assert_eq!(get(&c, top).await, Some(any_mdt(2, 1)));
    assert_eq!(get(&c, middle).await, Some(any_mdt(1, 0)));
    assert_eq!(get(&c, bottom).await, None, "only one level below");
    let stored = c.getxattr(top, "trusted.dmv").await.unwrap();
    assert_eq!(stored, any_mdt(2, 1).to_bytes());

    let deletion = LmvUserMdV1 {
        lum_stripe_count: 0,
        ..any_mdt(LMV_INHERIT_NONE as u8, 0)
    };
    set(&c, top, deletion).await.unwrap();
    assert_eq!(get(&c, top).await, None);
    assert_eq!(get(&c, middle).await, Some(any_mdt(1, 0)));
}

#[tokio::test(start_paused = true)]
async fn the_roots_default_layout_is_not_copied() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    set(&c, Fid::ROOT, any_mdt(3, 3)).await.unwrap();
    let dir = c.mkdir(Fid::ROOT, "dir").await;
    assert_eq!(get(&c, Fid::ROOT).await, Some(any_mdt(3, 3)));
    // Clients apply the root's layout to directories without one.
    assert_eq!(get(&c, dir).await, None);
}

#[tokio::test(start_paused = true)]
async fn impossible_default_layouts_are_refused() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let dir = c.mkdir(Fid::ROOT, "dir").await;
    let file = c.make(Fid::ROOT, "file", 0o100644, "").await.unwrap();
    let on_mdt = |lum_stripe_offset| LmvUserMdV1 {
        lum_stripe_offset,
        ..any_mdt(0, 0)
    };
    assert_eq!(set(&c, dir, on_mdt(0)).await, Ok(()));
    let striped = LmvUserMdV1 {
        lum_stripe_count: 2,
        ..any_mdt(0, 0)
    };
    assert_eq!(set(&c, dir, on_mdt(7)).await, Err(Errno::EINVAL), "no such MDT");
    assert_eq!(set(&c, dir, striped).await, Err(Errno::EOPNOTSUPP));
    assert_eq!(set(&c, dir, any_mdt(251, 0)).await, Err(Errno::EINVAL));
    assert_eq!(set(&c, file, on_mdt(0)).await, Err(Errno::ENOTDIR));
    *c.creds.lock() = (1000, 1000, 0);
    assert_eq!(
        set(&c, dir, any_mdt(0, 0)).await,
        Err(Errno::EPERM),
        "not the owner"
    );
    assert_eq!(get(&c, dir).await, Some(on_mdt(0)));
}
