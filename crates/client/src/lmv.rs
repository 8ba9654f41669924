//! All metadata targets, and which of them has a FID.
//!
//! A FID's sequence says its target, by the location database: ranges that were asked once are kept. With one target
//! the question is still asked, as every client does.

use crate::fld::FldCache;
use crate::mdc::Mdc;
use bytes::Bytes;
use parking_lot::RwLock;
use rpc::Request;
use std::sync::Arc;
use wire::{Errno, FLD_LOOKUP, FLD_QUERY, Fid, LuSeqRange, WireStruct};

/// The metadata targets of a mount.
pub(crate) struct Lmv {
    mdcs: Vec<Arc<Mdc>>,
    fld: RwLock<FldCache>,
}

impl Lmv {
    /// `mdcs` is not empty, and begins with the target that has the root.
    pub(crate) fn new(mdcs: Vec<Arc<Mdc>>) -> Lmv {
        Lmv {
            mdcs,
            fld: RwLock::default(),
        }
    }

    /// The target that has the root and answers for the file system.
    pub(crate) fn first(&self) -> &Arc<Mdc> {
        &self.mdcs[0]
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[Arc<Mdc>] {
        &self.mdcs
    }

    /// The target that has this file.
    pub(crate) async fn of(&self, fid: Fid) -> Result<&Arc<Mdc>, Errno> {
        let known = self.fld.read().lookup(fid.f_seq);
        let index = match known {
            Some(index) => index,
            None => self.ask(fid).await?,
        };
        self.by_index(index)
    }

    fn by_index(&self, index: u32) -> Result<&Arc<Mdc>, Errno> {
        self.mdcs.iter().find(|m| m.index == index).ok_or(Errno::ENODEV)
    }

    async fn ask(&self, fid: Fid) -> Result<u32, Errno> {
        let op = Bytes::copy_from_slice(&FLD_LOOKUP.to_le_bytes());
        let range = LuSeqRange {
            lsr_start: fid.f_seq,
            ..LuSeqRange::default()
        };
        let req = Request::new(FLD_QUERY, vec![op, range.to_bytes()]);
        let found: LuSeqRange = self.first().import.call(req).await?.get(1)?;
        self.fld.write().insert(found);
        // An answer that does not hold what was asked is the server's mistake; it must not be asked for ever.
        self.fld.read().lookup(fid.f_seq).ok_or(Errno::EPROTO)
    }
}
