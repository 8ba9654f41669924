//! Builds the request of a step.

use bytes::Bytes;
use wire::{Fid, LustreHandle, MdtBody, OstId, nul_terminated};

use crate::steps::{Action, Mutation, Step};

mod locks;
mod names;
mod objects;
mod queries;

/// The client's handle of its first lock; each further lock gets the next number.
const FIRST_LOCK_COOKIE: u64 = 0x7700;
/// Number of FIDs that a step can name.
pub const FIDS: usize = 16;

/// The knowledge of the clients about the servers.
#[derive(Debug, Default)]
pub struct ServerHandles {
    /// The FIDs that steps name.
    pub fids: [Fid; FIDS],
    /// The servers' handles of locks, in the order of the requests; 0 without a reply.
    pub locks: Vec<u64>,
    /// Open files.
    pub opens: Vec<LustreHandle>,
    /// Objects of files.
    pub objects: Vec<OstId>,
}

impl ServerHandles {
    fn fid(&self, slot: u8) -> Fid {
        self.fids[usize::from(slot) % FIDS]
    }

    /// The server's handle of a lock.
    pub fn lock(&self, slot: usize) -> u64 {
        pick(&self.locks, slot).unwrap_or(0)
    }

    fn object(&self, slot: u8) -> OstId {
        let missing = OstId {
            oi_id: u64::from(slot),
            oi_seq: 0x2_4000_0400,
        };
        pick(&self.objects, slot.into()).unwrap_or(missing)
    }
}

fn pick<T: Copy>(all: &[T], slot: usize) -> Option<T> {
    all.get(slot % all.len().max(1)).copied()
}

/// A request without its `ptlrpc_body`.
#[derive(Clone, Debug)]
pub struct Request {
    /// Whether it goes to the OST.
    pub to_ost: bool,
    /// The portal.
    pub portal: u32,
    /// The operation.
    pub opc: u32,
    /// The buffers.
    pub bufs: Vec<Bytes>,
}

fn mdt(opc: u32, bufs: Vec<Bytes>) -> Request {
    let portal = wire::MDS_REQUEST_PORTAL;
    Request {
        to_ost: false,
        portal,
        opc,
        bufs,
    }
}

fn ost(portal: u32, opc: u32, bufs: Vec<Bytes>) -> Request {
    Request {
        to_ost: true,
        portal,
        opc,
        bufs,
    }
}

fn reint(record: Bytes, more: impl IntoIterator<Item = Bytes>) -> Request {
    let bufs = [record, Bytes::new()].into_iter().chain(more).collect();
    mdt(wire::MDS_REINT, bufs)
}

/// The name with this number.
pub fn name(slot: u8) -> Bytes {
    const NAMES: [&str; 8] = ["a", "b", "c", "", ".", "..", ".lustre", "a/b"];
    match slot % 9 {
        8 => nul_terminated(&[b'n'; 256]),
        slot => nul_terminated(NAMES[usize::from(slot)].as_bytes()),
    }
}

fn body(fid: Fid) -> MdtBody {
    MdtBody {
        mbo_fid1: fid,
        mbo_valid: 0x1140_0084_9103_6fdf,
        mbo_capability: u32::MAX,
        mbo_eadatasize: 4096,
        ..MdtBody::default()
    }
}

/// One of the lock modes.
fn mode(slot: u8) -> u32 {
    const MODES: [u32; 7] = [
        wire::LCK_PR,
        wire::LCK_PW,
        wire::LCK_EX,
        wire::LCK_CR,
        wire::LCK_CW,
        wire::LCK_NL,
        wire::LCK_GROUP,
    ];
    MODES[usize::from(slot) % MODES.len()]
}

/// A position in a file: small ones, and the extremes.
fn position(slot: u8) -> u64 {
    match slot {
        0xff => u64::MAX,
        0xfe => i64::MAX as u64,
        0xe0..=0xfd => 1 << (slot - 0xe0 + 31),
        _ => u64::from(slot) << 11,
    }
}

/// Builds the request of a step; `None` if the step sends a whole message or no new request.
pub fn build(step: &Step, known: &ServerHandles) -> Option<Request> {
    let mut request = match step.action {
        Action::LockInode | Action::Flock | Action::LockExtent | Action::Cancel | Action::Convert => {
            locks::lock_request(step, known)
        }
        Action::Transfer | Action::Object | Action::ObjectInfo => objects::object_request(step, known),
        Action::Open | Action::Close | Action::Intent => locks::open_request(step, known),
        _ => names::name_request(step, known).or_else(|| queries::query(step, known))?,
    };
    for mutation in &step.mutations {
        mutate(&mut request.bufs, mutation);
    }
    Some(request)
}

fn mutate(bufs: &mut Vec<Bytes>, mutation: &Mutation) {
    let Mutation {
        buffer,
        at,
        how,
        value,
    } = *mutation;
    let count = bufs.len().max(1);
    let Some(buf) = bufs.get_mut(usize::from(buffer) % count) else {
        return;
    };
    let mut bytes = buf.to_vec();
    let at = usize::from(at) % bytes.len().max(1);
    match how % 6 {
        0 => bytes.truncate(at),
        1 => bytes.extend([value; 64]),
        2 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = value),
        3 => bytes
            .iter_mut()
            .skip(at & !3)
            .take(4)
            .for_each(|byte| *byte = value),
        4 => bytes
            .iter_mut()
            .skip(at & !7)
            .take(8)
            .for_each(|byte| *byte = value),
        _ => bytes
            .iter_mut()
            .skip(at)
            .take(1)
            .for_each(|byte| *byte ^= 1 << (value % 8)),
    }
    *buf = bytes.into();
}
