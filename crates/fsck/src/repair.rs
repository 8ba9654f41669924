//! Repairing: each problem where it is, and between the targets.

use std::collections::HashMap;

use mdt::layout::Object;
use wire::{Errno, Fid, OstIndex};

use crate::{
    cross,
    targets::{OstStore, Problem, Stores, Wrong},
};

/// Repairs stores that are open for it.
pub(crate) struct Repairer<'a> {
    stores: &'a Stores,
    names: Option<mdt::check::Repairer>,
    /// For each OST the sequence and the last id that was used for a new object.
    made: HashMap<OstIndex, (u64, u32)>,
}

impl<'a> Repairer<'a> {
    pub(crate) fn new(stores: &'a Stores) -> Repairer<'a> {
        let mdt = stores.mdt.as_ref();
        Repairer {
            stores,
            names: mdt.map(|mdt| mdt::check::Repairer::new(mdt.store.clone(), mdt.index)),
            made: HashMap::new(),
        }
    }

    /// Repairs a problem, or says why not.
    pub(crate) async fn repair(&mut self, wrong: &Wrong) -> Result<(), String> {
        let done = match (&wrong.problem, &mut self.names) {
            (Problem::Mgs | Problem::Journal, _) => Ok(()),
            (Problem::Mdt(problem), Some(names)) => names.repair(problem).await,
            (Problem::Ost(index, problem), _) => match self.stores.osts.get(index) {
                Some(ost) => ost.store.repair(problem).map_err(Errno::from),
                None => Err(Errno::ENODEV),
            },
            (Problem::Cross(problem), Some(_)) => self.cross(problem).await,
            (Problem::Mdt(_) | Problem::Cross(_), None) => Err(Errno::ENODEV),
        };
        done.map_err(|e| e.to_string())
    }

    async fn cross(&mut self, problem: &cross::Problem) -> Result<(), Errno> {
        match *problem {
            cross::Problem::Shared {
                ost,
                loses: (file, stripe),
                ..
            }
            | cross::Problem::Impossible {
                ost,
                of: (file, stripe),
                ..
            } => {
                let fid = self.new_object(ost)?;
                self.names()?.replace_object(file, stripe, Object { ost, fid })
            }
            cross::Problem::WrongParent { ost, object, of, .. } => self.set_parent(ost, object, of).await,
            cross::Problem::Condemned { ost, object, .. } => self.names()?.do_not_destroy(ost, object),
            cross::Problem::Orphan { ost, object, .. } => self.orphan(ost, object).await,
            cross::Problem::LowMark { ost, seq, used, .. } => self.names()?.set_mark(ost, (seq, used)),
            cross::Problem::LowLast { ost, seq, used, .. } => {
                Ok(self.ost(ost)?.store.set_last(seq, used.into())?)
            }
            cross::Problem::ForeignMark { ost, .. } => self.names()?.forget_mark(ost),
            cross::Problem::NotLocated { range, .. } => self.names()?.locate(range),
        }
    }

    /// An object that is nobody's: with data it becomes a file, for people to look at.
    async fn orphan(&mut self, ost: OstIndex, object: Fid) -> Result<(), Errno> {
        let attr = self.ost(ost)?.store.attr(object).await?;
        if attr.size == 0 {
            return Ok(self.ost(ost)?.store.destroy(object).await?);
        }
        let name = format!("{:#x}:{:#x}:0x0-OST{ost:04x}", object.f_seq, object.f_oid);
        let owner = (attr.uid, attr.gid);
        let names = self.names()?;
        let file = names
            .file_of_object(Object { ost, fid: object }, owner, &name)
            .await?;
        self.set_parent(ost, object, (file, 0)).await
    }

    async fn set_parent(&self, ost: OstIndex, object: Fid, (file, stripe): (Fid, u16)) -> Result<(), Errno> {
        let parent = Fid::new(file.f_seq, file.f_oid, stripe.into());
        Ok(self.ost(ost)?.store.set_parent(object, parent).await?)
    }

    /// A new object in the sequence that the MDT uses on an OST: an id above all others there.
    fn new_object(&mut self, ost: OstIndex) -> Result<Fid, Errno> {
        let (seq, above) = match self.made.get(&ost) {
            Some(made) => *made,
            None => {
                let (seq, used) = self.names()?.mark(ost)?.ok_or(Errno::ENODEV)?;
                let sequences = self
                    .ost(ost)?
                    .store
                    .sequences(&Default::default(), &mut Vec::new())?;
                let last = u32::try_from(sequences.last(seq)).map_err(|_| Errno::ENOSPC)?;
                (seq, used.max(last))
            }
        };
        let oid = above.checked_add(1).ok_or(Errno::ENOSPC)?;
        self.ost(ost)?.store.set_last(seq, oid.into())?;
        self.names()?.set_mark(ost, (seq, oid))?;
        self.made.insert(ost, (seq, oid));
        Ok(Fid::new(seq, oid, 0))
    }

    fn names(&mut self) -> Result<&mut mdt::check::Repairer, Errno> {
        self.names.as_mut().ok_or(Errno::ENODEV)
    }

    fn ost(&self, index: OstIndex) -> Result<&OstStore, Errno> {
        self.stores.osts.get(&index).ok_or(Errno::ENODEV)
    }
}
