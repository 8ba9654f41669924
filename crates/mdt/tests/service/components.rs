//! Tests of composite layouts: a component gets its objects before a client first writes there.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use mdt::layout::{
    self, StripeObject, StripePlace, StripeRequest,
    composite::{ComponentRequest, EOF},
};
use testbase::mds_client::{Client, Intent};
use wire::{
    Errno, Fid, IT_LAYOUT, LAYOUT_INTENT_ACCESS, LAYOUT_INTENT_TRUNC, LAYOUT_INTENT_WRITE, LCK_EX,
    LDLM_ENQUEUE, LDLM_FL_HAS_INTENT, LDLM_IBITS, LayoutIntent, LdlmLockDesc, LdlmPolicyData, LdlmReply,
    LdlmRequest, LdlmResourceDesc, LuExtent, MDS_ATTR_SIZE, MDS_FMODE_READ, MDS_FMODE_WRITE,
    MDS_INODELOCK_LAYOUT as LAYOUT, MDS_OPEN_BY_FID, MDS_OPEN_CREAT, MDS_OPEN_DELAY_CREATE, MDS_OPEN_HAS_EA,
    MdtRecSetattr, WireStruct, striping::CompositeLayout,
};

use crate::fixture::{Fixture, wait_until};

/// The cookie of the next lock request; other requests of the clients use lower ones.
static NEXT_COOKIE: AtomicU64 = AtomicU64::new(1 << 40);

const MIB: u64 = 1 << 20;
const CREATE: u64 = MDS_OPEN_CREAT | MDS_FMODE_WRITE | MDS_FMODE_READ;

fn component(extent: std::ops::Range<u64>, stripe_count: u16) -> ComponentRequest {
    let striping = StripeRequest {
        stripe_size: 1 << 20,
        stripe_count,
        ..StripeRequest::default()
    };
    ComponentRequest {
        extent,
        on_mdt: false,
        striping,
    }
}

/// `lfs setstripe -E 1M -c 1 -S 1M -E 4M -c 2 -E END -c -1`.
pub(crate) fn three(end: u64) -> Bytes {
    layout::composite::to_default_layout(&[
        component(0..MIB, 1),
        component(MIB..4 * MIB, 2),
        component(4 * MIB..end, 0xffff),
    ])
}

pub(crate) async fn create(c: &Client, name: &str, layout: &[u8]) -> Intent {
    let created = c
        .open_with(Fid::ROOT, name, CREATE | MDS_OPEN_HAS_EA, layout)
        .await;
    assert_eq!(created.status, 0);
    created
}

/// The result of a layout intent.
pub(crate) struct Answer {
    status: i32,
    pub(crate) transno: u64,
    lock: LdlmReply,
    pub(crate) layout: Bytes,
}

/// Sends a layout intent for a range.
pub(crate) async fn request(c: &Client, file: Fid, opc: u32, e_start: u64, e_end: u64) -> Answer {
    let intent = LayoutIntent {
        lai_opc: opc,
        lai_extent: LuExtent { e_start, e_end },
        ..LayoutIntent::default()
    };
    let dlm = LdlmRequest {
        lock_flags: LDLM_FL_HAS_INTENT as u32,
        lock_count: 1,
        lock_desc: LdlmLockDesc {
            l_resource: LdlmResourceDesc {
                lr_type: LDLM_IBITS,
                lr_name: file.res_id(),
                ..Default::default()
            },
            l_req_mode: LCK_EX,
            l_policy_data: LdlmPolicyData::inodebits(LAYOUT, 0),
            ..Default::default()
        },
        lock_handle: [NEXT_COOKIE.fetch_add(1, Ordering::Relaxed), 0],
    };
    let opc_bytes = Bytes::copy_from_slice(&IT_LAYOUT.to_le_bytes());
    let bufs = vec![dlm.to_bytes(), opc_bytes, intent.to_bytes(), Bytes::new()];
    let reply = match opc {
        LAYOUT_INTENT_ACCESS => c.call(LDLM_ENQUEUE, bufs).await.unwrap(),
        _ => c.modify(LDLM_ENQUEUE, bufs).await.unwrap(),
    };
    let lock: LdlmReply = reply.get(1).unwrap();
    Answer {
        status: lock.intent_status(),
        transno: reply.body.pb_transno,
        lock,
        layout: Bytes::copy_from_slice(reply.buf(2)),
    }
}

async fn layout_of(c: &Client, file: Fid) -> Bytes {
    request(c, file, LAYOUT_INTENT_ACCESS, 0, 0).await.layout
}

fn composite(ea: &[u8]) -> CompositeLayout {
    layout::components(ea).unwrap().unwrap()
}

/// The number of objects of each component.
fn object_counts(ea: &[u8]) -> Vec<usize> {
    let mut counts = vec![0; composite(ea).components.len()];
    for (StripePlace { component, .. }, _) in layout::placed_objects(ea).unwrap() {
        counts[usize::from(component)] += 1;
    }
    counts
}

fn is_revoked(c: &Client, file: Fid) -> bool {
    let revoked = c.revoked.lock();
    revoked
        .iter()
        .any(|(fid, bits)| *fid == file && bits & LAYOUT != 0)
}

#[tokio::test]
async fn write_intent_gives_objects_to_the_components_that_it_touches() {
    let f = Fixture::new(2).await;
    let (c, other) = (f.client().await, f.client().await);
    let created = create(&c, "file", &three(EOF)).await;
    let (file, ea) = (created.fid(), created.reply.bytes(3));
    assert_eq!(object_counts(&ea), [1, 0, 0]);
    assert_eq!(composite(&ea).head.lcm_layout_gen, 3);
    assert_eq!(layout_of(&other, file).await, ea);

    let answer = request(&c, file, LAYOUT_INTENT_WRITE, 5 * MIB, 5 * MIB + 1).await;
    assert_eq!((answer.status, object_counts(&answer.layout)), (0, vec![1, 0, 2]));
    assert_eq!(composite(&answer.layout).head.lcm_layout_gen, 4);
    assert_ne!(answer.transno, 0);
    assert_eq!(answer.lock.lock_desc.l_policy_data.bits(), LAYOUT);
    assert!(is_revoked(&other, file));
    assert_eq!(layout_of(&other, file).await, answer.layout);
    other.revoked.lock().clear();

    // With all objects, an intent changes nothing.
    for (opc, start, end) in [
        (LAYOUT_INTENT_WRITE, 5 * MIB, 9 * MIB),
        (LAYOUT_INTENT_TRUNC, 9, 9),
    ] {
        let again = request(&c, file, opc, start, end).await;
        assert_eq!((again.transno, again.layout), (0, answer.layout.clone()));
    }
    assert!(!is_revoked(&other, file));

    // An append requests all objects.
    let all = request(&other, file, LAYOUT_INTENT_WRITE, 0, EOF).await;
    assert_eq!(object_counts(&all.layout), [1, 2, 2]);
    let mut objects: Vec<_> = layout::objects(&all.layout)
        .unwrap()
        .iter()
        .map(|o| o.fid)
        .collect();
    objects.sort_unstable();
    objects.dedup();
    assert_eq!(objects.len(), 5, "no object occurs twice");
}

#[tokio::test]
async fn intent_beyond_the_last_component_is_einval() {
    let f = Fixture::new(2).await;
    let c = f.client().await;
    let file = create(&c, "file", &three(8 * MIB)).await.fid();
    let answer = request(&c, file, LAYOUT_INTENT_WRITE, 5 * MIB, 8 * MIB + 1).await;
    assert_eq!(answer.status, Errno::EINVAL.status());
    assert_eq!(object_counts(&layout_of(&c, file).await), [1, 0, 0]);
    let answer = request(&c, file, LAYOUT_INTENT_WRITE, 5 * MIB, EOF).await;
    assert_eq!((answer.status, object_counts(&answer.layout)), (0, vec![1, 0, 2]));
}

#[tokio::test]
async fn read_only_client_gets_no_objects() {
    let f = Fixture::new(2).await;
    let c = f.client().await;
    let file = create(&c, "file", &three(EOF)).await.fid();
    f.map_clients(&[("readonly_mount", "1")]);
    let read_only = f.client().await;
    let answer = request(&read_only, file, LAYOUT_INTENT_WRITE, 2 * MIB, 3 * MIB).await;
    assert_eq!(answer.status, Errno::EROFS.status());
    assert_eq!(object_counts(&layout_of(&read_only, file).await), [1, 0, 0]);
}

#[tokio::test]
async fn file_takes_the_composite_default_of_its_directory_or_of_the_root() {
    let f = Fixture::new(2).await;
    let c = f.client().await;
    let dir = c.mkdir(Fid::ROOT, "dir").await;
    let plain = c.mkdir(Fid::ROOT, "plain").await;
    let set = |sa_fid| MdtRecSetattr {
        sa_fid,
        ..MdtRecSetattr::default()
    };
    c.setattr(set(dir), &three(EOF)).await.unwrap();
    let two_stripes = StripeRequest {
        stripe_count: 2,
        ..StripeRequest::default()
    };
    c.setattr(set(plain), &two_stripes.to_default_layout())
        .await
        .unwrap();
    let root_default = layout::composite::to_default_layout(&[component(0..EOF, 1)]);
    c.setattr(set(Fid::ROOT), &root_default).await.unwrap();
    assert_eq!(c.getxattr(dir, "trusted.lov").await.unwrap(), three(EOF));

    let layout = |opened: &Intent| opened.reply.bytes(3);
    let in_dir = layout(&c.open(dir, "f", CREATE).await);
    assert_eq!(object_counts(&in_dir), [1, 0, 0]);
    let sub = c.mkdir(dir, "sub").await;
    assert_eq!(object_counts(&layout(&c.open(sub, "f", CREATE).await)), [1, 0, 0]);
    let in_root = layout(&c.open(Fid::ROOT, "f", CREATE).await);
    assert_eq!(object_counts(&in_root), [1]);
    let in_plain = layout(&c.open(plain, "f", CREATE).await);
    assert!(layout::components(&in_plain).unwrap().is_none());
    assert_eq!(layout::objects(&in_plain).unwrap().len(), 2);
    // A request with a value takes nothing from a composite default.
    let ea = two_stripes.to_default_layout();
    let requested = layout(&c.open_with(dir, "two", CREATE | MDS_OPEN_HAS_EA, &ea).await);
    assert!(layout::components(&requested).unwrap().is_none());

    let nothing = StripeRequest::default().to_default_layout();
    for removed in [dir, Fid::ROOT] {
        c.setattr(set(removed), &nothing).await.unwrap();
    }
    let after = layout(&c.open(dir, "after", CREATE).await);
    assert!(layout::components(&after).unwrap().is_none());
}

#[tokio::test]
async fn invalid_layouts_are_errors_of_files_and_directories() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let gap = layout::composite::to_default_layout(&[component(0..MIB, 1), component(2 * MIB..EOF, 1)]);
    let refused = c
        .open_with(Fid::ROOT, "file", CREATE | MDS_OPEN_HAS_EA, &gap)
        .await;
    assert_eq!(refused.status, Errno::EINVAL.status());
    let root = MdtRecSetattr {
        sa_fid: Fid::ROOT,
        ..MdtRecSetattr::default()
    };
    assert_eq!(c.setattr(root, &gap).await.unwrap_err(), Errno::EINVAL);
    assert_eq!(
        c.setattr(root, &three(EOF)[..200]).await.unwrap_err(),
        Errno::EINVAL
    );
    let file = c.open(Fid::ROOT, "plain", CREATE).await.fid();
    let set = c.setxattr(file, "lustre.lov", &three(EOF)).await;
    assert_eq!(set.unwrap_err(), Errno::EEXIST);
    for name in ["trusted.lov.add", "lustre.lov.del"] {
        let change = c.setxattr(file, name, &three(EOF)).await;
        assert_eq!(change.unwrap_err(), Errno::EOPNOTSUPP, "{name}");
    }
}

#[tokio::test]
async fn file_with_a_size_gets_the_objects_of_its_last_byte() {
    let f = Fixture::new(2).await;
    let c = f.client().await;
    let created = c.open(Fid::ROOT, "file", CREATE | MDS_OPEN_DELAY_CREATE).await;
    let truncate = MdtRecSetattr {
        sa_fid: created.fid(),
        sa_valid: MDS_ATTR_SIZE,
        sa_size: 2 * MIB + 5,
        ..MdtRecSetattr::default()
    };
    c.setattr(truncate, &[]).await.unwrap();
    let bounded = layout::composite::to_default_layout(&[component(0..2 * MIB, 1)]);
    let flags = MDS_FMODE_WRITE | MDS_OPEN_BY_FID | MDS_OPEN_HAS_EA;
    let too_small = c.open_with(created.fid(), "", flags, &bounded).await;
    assert_eq!(too_small.status, Errno::EFBIG.status());
    let set = c.open_with(created.fid(), "", flags, &three(EOF)).await;
    assert_eq!(set.status, 0);
    let ea = set.reply.bytes(3);
    assert_eq!(object_counts(&ea), [1, 2, 0]);
    let (object, size) = layout::last_object(&ea, 2 * MIB + 5).unwrap().unwrap();
    assert_eq!(
        *f.osts[object.ost.0 as usize].sizes.lock(),
        [(object.fid, size, true)]
    );
}

#[tokio::test]
async fn removal_destroys_the_objects_of_all_components() {
    let f = Fixture::new(2).await;
    let c = f.client().await;
    let created = create(&c, "file", &three(EOF)).await;
    let answer = request(&c, created.fid(), LAYOUT_INTENT_WRITE, MIB, EOF).await;
    let mut objects: Vec<StripeObject> = layout::objects(&answer.layout).unwrap();
    assert_eq!(objects.len(), 5);
    let chown = MdtRecSetattr {
        sa_fid: created.fid(),
        sa_valid: wire::MDS_ATTR_UID,
        sa_uid: 7,
        ..MdtRecSetattr::default()
    };
    c.setattr(chown, &[]).await.unwrap();
    wait_until(|| f.osts.iter().map(|ost| ost.owners.lock().len()).sum::<usize>() == 5).await;
    c.close(created.fid(), created.handle()).await.unwrap();
    c.unlink(Fid::ROOT, "file", false).await.unwrap();
    // The recorded requests name the first of several consecutive objects.
    objects.sort_by_key(|o| (o.ost, o.fid));
    let first: Vec<Fid> = f
        .osts
        .iter()
        .enumerate()
        .filter_map(|(index, _)| objects.iter().find(|o| o.ost.0 as usize == index).map(|o| o.fid))
        .collect();
    wait_until(|| {
        f.osts
            .iter()
            .zip(&first)
            .all(|(ost, first)| ost.destroyed.lock().contains(first))
    })
    .await;
}
