//! All metadata targets, and the lookup of the target that has a FID.
//!
//! The FID location database (FLD) maps the FID's sequence to the target. The client caches the
//! ranges of the metadata targets. It queries the FLD even with one target, as every Lustre client
//! does.

mod fld;
pub(crate) mod placement;
mod targets;

use crate::mdc::Mdc;
use bytes::Bytes;
use fld::FldCache;
use parking_lot::{Mutex, RwLock};
use placement::Spaces;
use rpc::Request;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use targets::Targets;
use wire::format::bufs;
use wire::{
    Errno, FLD_LOOKUP, FLD_QUERY, Fid, LU_SEQ_RANGE_ANY, LU_SEQ_RANGE_MASK, LU_SEQ_RANGE_MDT,
    LU_SEQ_RANGE_OST, LmvUserMdV1, LuSeqRange, OstIndex, WireStruct,
};

/// The metadata targets of a mount.
pub(crate) struct Lmv {
    first: Arc<Mdc>,
    targets: Targets,
    fld: RwLock<FldCache>,
    /// The index of the target that gets the next directory in turn, or of the next one above it.
    pub(crate) next_in_turn: AtomicU32,
    /// The free space of the targets when last asked.
    pub(crate) spaces: Mutex<Spaces>,
    /// For the choice of targets by free space.
    pub(crate) rng: Mutex<fastrand::Rng>,
    /// The root's default directory layout when last seen.
    pub(crate) root_default: RwLock<Option<Arc<LmvUserMdV1>>>,
}

impl Lmv {
    /// The table with MDT0000. `seed`: for the choice of targets by free space.
    pub(crate) fn new(first: Arc<Mdc>, seed: u64) -> Lmv {
        let lmv = Lmv {
            first: first.clone(),
            targets: Targets::new(),
            fld: RwLock::default(),
            next_in_turn: AtomicU32::new(0),
            spaces: Mutex::default(),
            rng: Mutex::new(fastrand::Rng::with_seed(seed)),
            root_default: RwLock::default(),
        };
        lmv.targets.add(first.index, || first);
        lmv
    }

    /// Adds the target that `build` makes unless one with this index is known. Returns the added
    /// target.
    pub(crate) fn add(&self, index: u32, build: impl FnOnce() -> Arc<Mdc>) -> Option<&Arc<Mdc>> {
        self.targets.add(index, build)
    }

    /// MDT0000, which has the root.
    pub(crate) fn first(&self) -> &Arc<Mdc> {
        &self.first
    }

    /// All metadata targets, in order of their indexes.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Mdc>> {
        self.targets.all()
    }

    /// The metadata target with this index. `ENODEV`: the mount does not know the target.
    pub(crate) fn by_index(&self, index: u32) -> Result<&Arc<Mdc>, Errno> {
        self.targets.get(index).ok_or(Errno::ENODEV)
    }

    /// The metadata target that has this file. `ENODEV`: the mount does not know the target.
    pub(crate) async fn mdc_of(&self, fid: Fid) -> Result<&Arc<Mdc>, Errno> {
        let known = self.fld.read().lookup(fid.f_seq);
        let index = match known {
            Some(index) => index,
            None => self.query_fld(fid).await?,
        };
        self.by_index(index)
    }

    /// The metadata target that has this file, if the client knows it without a query.
    pub(crate) fn known_mdc_of(&self, fid: Fid) -> Option<&Arc<Mdc>> {
        let index = self.fld.read().lookup(fid.f_seq)?;
        self.targets.get(index)
    }

    /// The index of the OST that has this sequence. `ENOENT`: no OST has it.
    pub(crate) async fn ost_of(&self, seq: u64) -> Result<OstIndex, Errno> {
        let range = self.locate(seq, LU_SEQ_RANGE_ANY).await?;
        match range.lsr_flags & LU_SEQ_RANGE_MASK {
            LU_SEQ_RANGE_OST => Ok(OstIndex(range.lsr_index)),
            _ => Err(Errno::ENOENT),
        }
    }

    async fn query_fld(&self, fid: Fid) -> Result<u32, Errno> {
        let found = self.locate(fid.f_seq, LU_SEQ_RANGE_MDT).await?;
        self.fld.write().insert(found);
        // A reply without the queried sequence is the server's error; a retry would loop.
        self.fld.read().lookup(fid.f_seq).ok_or(Errno::EPROTO)
    }

    /// Queries the FLD for the range of a sequence, among targets of this kind (`LU_SEQ_RANGE_*`).
    /// MDT0000 has the whole FLD. While it is not connected, the other targets are asked, which
    /// know their own ranges and those that they have asked for.
    async fn locate(&self, seq: u64, kind: u32) -> Result<LuSeqRange, Errno> {
        let op = Bytes::copy_from_slice(&FLD_LOOKUP.to_le_bytes());
        let range = LuSeqRange {
            lsr_start: seq,
            lsr_flags: kind,
            ..LuSeqRange::default()
        };
        let query = Request::new(FLD_QUERY, vec![op, range.to_bytes()]);
        if !self.first.is_connected() {
            for other in self.all().filter(|mdc| mdc.is_connected()) {
                let query = Request {
                    no_delay: true,
                    ..query.clone()
                };
                if let Ok(reply) = other.import.call(query).await {
                    return reply.get(bufs::QUERY_REPLY_RANGE);
                }
            }
        }
        self.first.import.call(query).await?.get(bufs::QUERY_REPLY_RANGE)
    }
}
