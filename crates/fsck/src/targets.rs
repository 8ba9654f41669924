//! The targets that are checked together: their directories, locked, and their stores.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use osd::{
    OsdError, StoreKind,
    check::{Finding, Progress},
    target::{TargetDir, TargetKind},
};
use wire::{Fid, OstIndex};

use crate::{FsckError, Summary, cross, repair::Repairer};

/// The directories of targets of one file system, locked.
pub struct Targets {
    /// The MGS's first, then the MDT's.
    dirs: Vec<TargetDir>,
}

/// Their stores.
pub(crate) struct Stores {
    mgs: Option<(String, PathBuf)>,
    pub(crate) mdt: Option<MdtStore>,
    pub(crate) osts: BTreeMap<OstIndex, OstStore>,
    fsname: String,
}

pub(crate) struct MdtStore {
    pub(crate) svname: String,
    pub(crate) index: u32,
    pub(crate) store: Arc<mdt::store::Store>,
}

pub(crate) struct OstStore {
    pub(crate) svname: String,
    pub(crate) store: ost::check::Store,
}

/// Something that is wrong, where, and how it is told.
pub(crate) struct Wrong {
    pub(crate) target: String,
    pub(crate) problem: Problem,
    pub(crate) finding: Finding,
}

/// Something that is wrong on one target, or between them.
pub(crate) enum Problem {
    Journal,
    Mgs,
    Mdt(mdt::check::Problem),
    Ost(OstIndex, ost::check::Problem),
    Cross(cross::Problem),
}

impl Targets {
    /// Opens and locks the directories of targets; only for a `repair` is anything in them changed.
    pub fn open_dirs(paths: &[PathBuf], repair: bool) -> Result<Targets, FsckError> {
        let mut dirs: Vec<TargetDir> = Vec::new();
        for path in paths {
            let dir = match repair {
                true => TargetDir::open(path)?,
                false => TargetDir::open_unchanged(path)?,
            };
            dir.check_stores()?;
            let label = dir.label().clone();
            if let Some(other) = dirs.iter().find(|d| d.label().kind != TargetKind::Mgs)
                && label.kind != TargetKind::Mgs
                && other.label().fsname != label.fsname
            {
                return Err(FsckError::OtherFileSystem {
                    path: path.clone(),
                    found: label.fsname,
                    expected: other.label().fsname.clone(),
                });
            }
            if dirs.iter().any(|d| d.label().svname() == label.svname()) {
                let (path, svname) = (path.clone(), label.svname());
                return Err(FsckError::Twice { path, svname });
            }
            dirs.push(dir);
        }
        dirs.sort_by_key(|d| (d.label().kind as u8, d.label().index));
        Ok(Targets { dirs })
    }

    /// What is damaged in the journals of the targets' indexes.
    pub(crate) fn damaged_journals(&self) -> Result<Vec<Wrong>, FsckError> {
        let mut wrong = Vec::new();
        for dir in self.dirs.iter().filter(|d| d.path().join("index").is_dir()) {
            let target = dir.label().svname();
            for damage in osd::journal::damage(dir.path()).map_err(failed(&target))? {
                wrong.push(Wrong {
                    target: target.clone(),
                    problem: Problem::Journal,
                    finding: Finding {
                        what: "damaged journal",
                        fid: None,
                        place: damage.journal.display().to_string(),
                        expected: "whole batches up to its end".into(),
                        found: format!(
                            "damage from byte {} to byte {}, with {} bytes of whole batches after that",
                            damage.bytes.start, damage.bytes.end, damage.whole_after
                        ),
                        repair: Some(
                            "removes the damaged bytes; the changes in them are lost; the journal is kept as \
                             damaged-N-NUMBER.jnl in the target's directory",
                        ),
                    },
                });
            }
        }
        Ok(wrong)
    }

    /// Removes what is damaged from the journals, which are kept as they are.
    pub(crate) fn repair_journals(&self) -> Result<(), FsckError> {
        for dir in self.dirs.iter().filter(|d| d.path().join("index").is_dir()) {
            osd::journal::repair(dir.path()).map_err(failed(&dir.label().svname()))?;
        }
        Ok(())
    }

    pub(crate) async fn open(&self, repair: bool) -> Result<Stores, FsckError> {
        let mut stores = Stores {
            mgs: None,
            mdt: None,
            osts: BTreeMap::new(),
            fsname: String::new(),
        };
        for dir in &self.dirs {
            let (label, path) = (dir.label(), dir.path().to_owned());
            let svname = label.svname();
            let failed = |source| FsckError::Store {
                target: svname.clone(),
                source,
            };
            // A target that was never started has no index yet, and nothing to check.
            if !path.join("index").is_dir() {
                continue;
            }
            match label.kind {
                TargetKind::Mgs => stores.mgs = Some((svname, path)),
                TargetKind::Mdt => {
                    stores.fsname.clone_from(&label.fsname);
                    let kind = StoreKind::Local(path);
                    let index = match repair {
                        true => osd::open_index(&kind).await,
                        false => osd::open_index_unchanged(&kind).await,
                    };
                    let store = Arc::new(mdt::store::Store::new(index.map_err(failed)?));
                    let index = label.index;
                    stores.mdt = Some(MdtStore { svname, index, store });
                }
                TargetKind::Ost => {
                    stores.fsname.clone_from(&label.fsname);
                    let store = ost::check::Store::open(&path, OstIndex(label.index), repair);
                    let store = store.await.map_err(failed)?;
                    stores
                        .osts
                        .insert(OstIndex(label.index), OstStore { svname, store });
                }
            }
        }
        Ok(stores)
    }
}

impl Stores {
    /// Examines all stores, each for itself and against the others.
    pub(crate) async fn examine(
        &self,
        progress: &Progress,
        summary: &mut Summary,
    ) -> Result<Vec<Wrong>, FsckError> {
        let mut wrong = Vec::new();
        summary.targets.clear();
        summary.unchecked.clear();
        summary.objects = 0;
        if let Some((svname, path)) = &self.mgs {
            summary.targets.push(svname.clone());
            let kind = StoreKind::Local(path.clone());
            let index = osd::open_index_unchanged(&kind).await.map_err(failed(svname))?;
            if let Err(e) = mgs::check(index) {
                wrong.push(Wrong {
                    target: svname.clone(),
                    problem: Problem::Mgs,
                    finding: Finding {
                        what: "unreadable log",
                        fid: None,
                        place: path.display().to_string(),
                        expected: "configuration logs as the MGS writes them".into(),
                        found: e.to_string(),
                        repair: None,
                    },
                });
            }
        }
        let mut examined = None;
        match &self.mdt {
            None => summary
                .unchecked
                .push("no MDT was given: names, and whose objects are, are not checked".into()),
            Some(mdt) => {
                summary.targets.push(mdt.svname.clone());
                let mut found =
                    mdt::check::examine(&mdt.store, mdt.index, progress).map_err(failed(&mdt.svname))?;
                summary.counts = found.counts;
                for problem in std::mem::take(&mut found.problems) {
                    wrong.push(Wrong {
                        target: mdt.svname.clone(),
                        finding: problem.finding(&mdt.store),
                        problem: Problem::Mdt(problem),
                    });
                }
                found.claims.sort_unstable();
                for ost in missing_osts(&found, &self.osts) {
                    let name = format!("{}-OST{ost:04x}", self.fsname);
                    summary
                        .unchecked
                        .push(format!("{name} was not given: objects on it are not checked"));
                }
                examined = Some(found);
            }
        }
        for (index, ost) in &self.osts {
            summary.targets.push(ost.svname.clone());
            let mut problems = Vec::new();
            let sequences = ost
                .store
                .sequences(progress, &mut problems)
                .map_err(failed(&ost.svname))?;
            let mut cross = cross::Cross::new(*index, &sequences, examined.as_ref());
            let objects = ost.store.each_object(progress, &mut problems, |object| {
                summary.objects += 1;
                cross.object(object);
            });
            objects.map_err(failed(&ost.svname))?;
            for problem in problems {
                // A file without names is destroyed; a crash may leave the record of an object whose file is gone.
                if let (ost::check::Problem::DamagedFile { fid, .. }, Some(found)) = (&problem, &examined)
                    && !claims(found, *index, fid)
                {
                    continue;
                }
                wrong.push(Wrong {
                    target: ost.svname.clone(),
                    finding: problem.finding(),
                    problem: Problem::Ost(*index, problem),
                });
            }
            for problem in cross.end() {
                let finding = problem.finding(self).await.map_err(failed(&ost.svname))?;
                wrong.push(Wrong {
                    target: ost.svname.clone(),
                    finding,
                    problem: Problem::Cross(problem),
                });
            }
        }
        Ok(wrong)
    }

    pub(crate) fn repairer(&self) -> Repairer<'_> {
        Repairer::new(self)
    }

    /// Waits until everything is on disk.
    pub(crate) async fn sync(&self) -> Result<(), FsckError> {
        if let Some(mdt) = &self.mdt {
            mdt.store.index().sync().await.map_err(failed(&mdt.svname))?;
        }
        for ost in self.osts.values() {
            ost.store.sync().await.map_err(failed(&ost.svname))?;
        }
        Ok(())
    }
}

/// OSTs that layouts name, or that objects are made on, and that are not among the targets.
fn missing_osts(found: &mdt::check::Examined, given: &BTreeMap<OstIndex, OstStore>) -> Vec<OstIndex> {
    let mut named: Vec<OstIndex> = found
        .claims
        .iter()
        .map(|c| c.ost)
        .chain(found.marks.keys().copied())
        .collect();
    named.sort_unstable();
    named.dedup();
    named.retain(|ost| !given.contains_key(ost));
    named
}

/// Whether a file's layout names the object; the claims are sorted.
fn claims(found: &mdt::check::Examined, ost: OstIndex, object: &Fid) -> bool {
    let key = (ost, (object.f_seq, object.f_oid));
    found
        .claims
        .binary_search_by_key(&key, |c| (c.ost, c.object))
        .is_ok()
}

fn failed(target: &str) -> impl FnOnce(OsdError) -> FsckError {
    let target = target.to_owned();
    move |source| match source {
        OsdError::Stopping => FsckError::Interrupted("the check did not come to its end"),
        source => FsckError::Store { target, source },
    }
}
