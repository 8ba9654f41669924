//! Repairs problems of one target, and problems between an MDT and an OST.

use std::collections::{BTreeMap, HashMap};

use mdt::layout::{StripeObject, StripePlace};
use wire::{Errno, Fid, OstIndex};

use crate::{
    cross::{self, Claimant},
    targets::{MdtStore, OstStore, Problem, Stores, TargetProblem},
};

/// Repairs stores that were opened for writing.
pub(crate) struct Repairer<'a> {
    stores: &'a Stores,
    /// Repairs the MDTs' stores.
    mdts: BTreeMap<u32, mdt::check::Repairer>,
    /// For each MDT and OST: the sequence of the replacement objects, and the last object id
    /// allocated there.
    allocated: HashMap<(u32, OstIndex), (u64, u32)>,
}

impl<'a> Repairer<'a> {
    pub(crate) fn new(stores: &'a Stores) -> Repairer<'a> {
        let repairer_of =
            |(&index, mdt): (&u32, &MdtStore)| (index, mdt::check::Repairer::new(mdt.store.clone(), index));
        Repairer {
            stores,
            mdts: stores.mdts.iter().map(repairer_of).collect(),
            allocated: HashMap::new(),
        }
    }

    /// Repairs a problem of one target, or of an MDT and an OST. The error says why the repair
    /// failed. Does nothing for problems of the MGS, which have no repair, and for problems of
    /// files of indexes, which [`Targets::repair_files`](crate::Targets::repair_files) repairs.
    pub(crate) async fn repair(&mut self, located: &TargetProblem) -> Result<(), String> {
        let result = match &located.problem {
            Problem::Mgs | Problem::Index | Problem::Journal => Ok(()),
            Problem::Mdt(index, problem) => match self.mdt(*index) {
                Ok(mdt) => mdt.repair(problem).await,
                Err(e) => Err(e),
            },
            Problem::Ost(index, problem) => match self.stores.osts.get(index) {
                Some(ost) => ost.store.repair(problem).map_err(Errno::from),
                None => Err(Errno::ENODEV),
            },
            Problem::Cross(problem) => self.repair_mismatch(problem).await,
        };
        result.map_err(|e| e.to_string())
    }

    async fn repair_mismatch(&mut self, problem: &cross::Mismatch) -> Result<(), Errno> {
        match *problem {
            cross::Mismatch::SharedObject {
                ost, loser: claimant, ..
            }
            | cross::Mismatch::ImpossibleObject { ost, claimant, .. } => {
                let fid = self.new_object(claimant.mdt, ost).await?;
                let Claimant { mdt, file, place } = claimant;
                self.mdt(mdt)?
                    .replace_object(file, place, StripeObject { ost, fid })
                    .await
            }
            cross::Mismatch::WrongParent {
                ost,
                object,
                claimant,
                ..
            } => {
                self.set_parent(ost, object, (claimant.file, claimant.place))
                    .await
            }
            cross::Mismatch::QueuedForDestroy {
                ost,
                object,
                queued_by,
                ..
            } => self.mdt(queued_by)?.cancel_destroy(ost, object).await,
            cross::Mismatch::Orphan { ost, object, .. } => self.repair_orphan(ost, object).await,
            cross::Mismatch::LowLastUsed {
                mdt,
                ost,
                seq,
                highest,
                ..
            } => self.mdt(mdt)?.set_last_used(ost, (seq, highest)),
            cross::Mismatch::LowLastCreated {
                ost, seq, highest, ..
            } => Ok(self.ost(ost)?.store.set_last(seq, highest.into())?),
            cross::Mismatch::ForeignSequence { mdt, ost, .. } => self.mdt(mdt)?.reset_sequence(ost).await,
            cross::Mismatch::MissingFldbEntry { range, .. } => self.mdt(0)?.add_fldb_entry(range),
        }
    }

    /// Destroys an orphan without data. Creates a file in lost+found of MDT0000 for an orphan with
    /// data.
    async fn repair_orphan(&mut self, ost: OstIndex, object: Fid) -> Result<(), Errno> {
        let attr = self.ost(ost)?.store.attr(object).await?;
        if attr.size == 0 {
            return Ok(self.ost(ost)?.store.destroy(object).await?);
        }
        let name = format!("{:#x}:{:#x}:0x0-OST{ost:04x}", object.f_seq, object.f_oid);
        let owner = (attr.uid, attr.gid);
        let mdt = self.mdt(0)?;
        let file = mdt
            .create_lost_file(StripeObject { ost, fid: object }, owner, &name)
            .await?;
        self.set_parent(ost, object, (file, StripePlace::default())).await
    }

    /// Stores a file and its stripe as the parent of an object.
    async fn set_parent(
        &self,
        ost: OstIndex,
        object: Fid,
        (file, place): (Fid, StripePlace),
    ) -> Result<(), Errno> {
        let parent = Fid::new(file.f_seq, file.f_oid, place.stripe.into());
        Ok(self.ost(ost)?.store.set_parent(object, parent).await?)
    }

    /// Allocates an object in the sequence that an MDT uses on this OST, with an id above the last
    /// used and the last created one.
    async fn new_object(&mut self, mdt: u32, ost: OstIndex) -> Result<Fid, Errno> {
        let (seq, highest) = match self.allocated.get(&(mdt, ost)) {
            Some(last) => *last,
            None => {
                let (seq, used) = self.mdt(mdt)?.last_used(ost).await?.ok_or(Errno::ENODEV)?;
                let sequences = self
                    .ost(ost)?
                    .store
                    .sequences(&Default::default(), &mut Vec::new())
                    .await?;
                let last = u32::try_from(sequences.last(seq)).map_err(|_| Errno::ENOSPC)?;
                (seq, used.max(last))
            }
        };
        let oid = highest.checked_add(1).ok_or(Errno::ENOSPC)?;
        self.ost(ost)?.store.set_last(seq, oid.into())?;
        self.mdt(mdt)?.set_last_used(ost, (seq, oid))?;
        self.allocated.insert((mdt, ost), (seq, oid));
        Ok(Fid::new(seq, oid, 0))
    }

    fn mdt(&mut self, index: u32) -> Result<&mut mdt::check::Repairer, Errno> {
        self.mdts.get_mut(&index).ok_or(Errno::ENODEV)
    }

    fn ost(&self, index: OstIndex) -> Result<&OstStore, Errno> {
        self.stores.osts.get(&index).ok_or(Errno::ENODEV)
    }
}
