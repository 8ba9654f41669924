//! All metadata targets, and the lookup of the target that has a FID.
//!
//! The FID location database (FLD) maps the FID's sequence to the target. The client caches the
//! ranges of the metadata targets. It queries the FLD even with one target, as every Lustre client
//! does.

use crate::fld::FldCache;
use crate::mdc::Mdc;
use bytes::Bytes;
use parking_lot::RwLock;
use rpc::Request;
use std::sync::Arc;
use wire::format::bufs;
use wire::{
    Errno, FLD_LOOKUP, FLD_QUERY, Fid, LU_SEQ_RANGE_ANY, LU_SEQ_RANGE_MASK, LU_SEQ_RANGE_MDT,
    LU_SEQ_RANGE_OST, LuSeqRange, OstIndex, WireStruct,
};

/// The metadata targets of a mount.
pub(crate) struct Lmv {
    mdcs: Vec<Arc<Mdc>>,
    fld: RwLock<FldCache>,
}

impl Lmv {
    /// `mdcs` is not empty and starts with MDT0000.
    pub(crate) fn new(mdcs: Vec<Arc<Mdc>>) -> Lmv {
        Lmv {
            mdcs,
            fld: RwLock::default(),
        }
    }

    /// MDT0000, which has the root.
    pub(crate) fn first(&self) -> &Arc<Mdc> {
        &self.mdcs[0]
    }

    /// All metadata targets.
    pub(crate) fn all(&self) -> &[Arc<Mdc>] {
        &self.mdcs
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

    /// The index of the OST that has this sequence. `ENOENT`: no OST has it.
    pub(crate) async fn ost_of(&self, seq: u64) -> Result<OstIndex, Errno> {
        let range = self.locate(seq, LU_SEQ_RANGE_ANY).await?;
        match range.lsr_flags & LU_SEQ_RANGE_MASK {
            LU_SEQ_RANGE_OST => Ok(OstIndex(range.lsr_index)),
            _ => Err(Errno::ENOENT),
        }
    }

    fn by_index(&self, index: u32) -> Result<&Arc<Mdc>, Errno> {
        self.mdcs.iter().find(|m| m.index == index).ok_or(Errno::ENODEV)
    }

    async fn query_fld(&self, fid: Fid) -> Result<u32, Errno> {
        let found = self.locate(fid.f_seq, LU_SEQ_RANGE_MDT).await?;
        self.fld.write().insert(found);
        // A reply without the queried sequence is the server's error; a retry would loop.
        self.fld.read().lookup(fid.f_seq).ok_or(Errno::EPROTO)
    }

    /// Queries the FLD for the range of a sequence, among targets of this kind (`LU_SEQ_RANGE_*`).
    async fn locate(&self, seq: u64, kind: u32) -> Result<LuSeqRange, Errno> {
        let op = Bytes::copy_from_slice(&FLD_LOOKUP.to_le_bytes());
        let range = LuSeqRange {
            lsr_start: seq,
            lsr_flags: kind,
            ..LuSeqRange::default()
        };
        let req = Request::new(FLD_QUERY, vec![op, range.to_bytes()]);
        self.first().import.call(req).await?.get(bufs::QUERY_REPLY_RANGE)
    }
}
