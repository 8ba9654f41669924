//! The targets checked together: their locked directories and their stores.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use osd::{
    LocalStores, OsdError, Stores as _,
    check::{Finding, Progress},
    engine_files::FileDamage,
    journal::Damage,
    target::{TargetDir, TargetKind},
};
use wire::{Fid, LU_SEQ_RANGE_MDT, OstIndex};

use crate::{FsckError, Summary, cross, cross::ExaminedMdts, repair::Repairer};

/// The locked directories of the targets of one file system.
pub struct Targets {
    /// The MGS first, then the MDTs, then the OSTs, by index.
    dirs: Vec<TargetDir>,
    /// Whether the check reads all data.
    data: bool,
}

/// The open stores of the targets.
pub(crate) struct Stores {
    /// The MGS's name, its directory and its stores.
    mgs: Option<(String, PathBuf, LocalStores)>,
    pub(crate) mdts: BTreeMap<u32, MdtStore>,
    pub(crate) osts: BTreeMap<OstIndex, OstStore>,
    fsname: String,
    /// The names of the targets that are not open, because their indexes are damaged.
    unread: Vec<String>,
    /// Whether the check reads all data.
    data: bool,
}

pub(crate) struct MdtStore {
    pub(crate) svname: String,
    pub(crate) store: Arc<mdt::store::Store>,
}

pub(crate) struct OstStore {
    pub(crate) svname: String,
    pub(crate) store: ost::check::Store,
}

/// A problem with its target and its description.
pub(crate) struct TargetProblem {
    pub(crate) target: String,
    pub(crate) problem: Problem,
    pub(crate) finding: Finding,
}

/// A problem of one target, or between an MDT and an OST.
pub(crate) enum Problem {
    Journal,
    Index,
    Mgs,
    Mdt(u32, mdt::check::Problem),
    Ost(OstIndex, ost::check::Problem),
    Cross(cross::Mismatch),
}

impl Targets {
    /// Opens and locks the directories of targets. Changes nothing in them unless `repair` is set.
    ///
    /// # Errors
    ///
    /// [`FsckError::Target`] if a directory is no target, is in use, or lacks a store;
    /// [`FsckError::OtherFileSystem`] or [`FsckError::DuplicateTarget`] if the targets do not
    /// belong together.
    pub fn open_dirs(paths: &[PathBuf], repair: bool) -> Result<Targets, FsckError> {
        let mut dirs: Vec<TargetDir> = Vec::new();
        for path in paths {
            let dir = match repair {
                true => TargetDir::open(path)?,
                false => TargetDir::open_read_only(path)?,
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
                return Err(FsckError::DuplicateTarget { path, svname });
            }
            dirs.push(dir);
        }
        dirs.sort_by_key(|d| (d.label().kind as u8, d.label().index));
        Ok(Targets { dirs, data: false })
    }

    /// Sets whether the check reads all data of the objects, and compares it with its checksums.
    pub fn with_data(self, data: bool) -> Targets {
        Targets { data, ..self }
    }

    /// Finds damage in the files of the targets' indexes. Reads all of them.
    pub(crate) fn damaged_files(&self, progress: &Progress) -> Result<Vec<TargetProblem>, FsckError> {
        let mut problems = Vec::new();
        for dir in self.dirs_with_index() {
            let target = dir.label().svname();
            for damage in
                osd::engine_files::find_damage(dir.path(), progress).map_err(store_error(&target))?
            {
                problems.push(TargetProblem {
                    target: target.clone(),
                    problem: Problem::Index,
                    finding: damaged_index(&damage),
                });
            }
            for damage in osd::journal::find_damage(dir.path()).map_err(store_error(&target))? {
                problems.push(TargetProblem {
                    target: target.clone(),
                    problem: Problem::Journal,
                    finding: damaged_journal(&damage),
                });
            }
        }
        Ok(problems)
    }

    /// Repairs the files of the indexes in which [`Targets::damaged_files`] found damage. Removes
    /// the damaged parts of journals, and rebuilds indexes with other damage. Keeps copies.
    pub(crate) fn repair_files(
        &self,
        damaged: &[TargetProblem],
        progress: &Progress,
    ) -> Result<(), FsckError> {
        for dir in self.dirs_with_index() {
            let target = dir.label().svname();
            osd::journal::repair(dir.path()).map_err(store_error(&target))?;
            if has_damaged_index(damaged, &target) {
                osd::engine_files::rebuild(dir.path(), progress).map_err(store_error(&target))?;
            }
        }
        Ok(())
    }

    /// The targets that ran before: the others have no index yet.
    fn dirs_with_index(&self) -> impl Iterator<Item = &TargetDir> {
        self.dirs.iter().filter(|dir| dir.has_index())
    }

    /// Opens the stores of the targets that ran before; for writing if `repair` is set. Without
    /// those of targets whose index is in `damaged`.
    pub(crate) async fn open(&self, repair: bool, damaged: &[TargetProblem]) -> Result<Stores, FsckError> {
        let mut stores = Stores {
            mgs: None,
            mdts: BTreeMap::new(),
            osts: BTreeMap::new(),
            fsname: String::new(),
            unread: Vec::new(),
            data: self.data,
        };
        for dir in self.dirs_with_index() {
            let (label, path) = (dir.label(), dir.path().to_owned());
            let svname = label.svname();
            if has_damaged_index(damaged, &svname) {
                stores.unread.push(svname);
                continue;
            }
            let store_error = |source| FsckError::Store {
                target: svname.clone(),
                source,
            };
            match label.kind {
                TargetKind::Mgs => stores.mgs = Some((svname, path, LocalStores::of(dir))),
                TargetKind::Mdt => {
                    stores.fsname.clone_from(&label.fsname);
                    let target_stores = LocalStores::of(dir);
                    let index = match repair {
                        true => target_stores.open_index().await,
                        false => target_stores.open_index_read_only().await,
                    };
                    let store = Arc::new(mdt::store::Store::new(index.map_err(store_error)?));
                    stores.mdts.insert(label.index, MdtStore { svname, store });
                }
                TargetKind::Ost => {
                    stores.fsname.clone_from(&label.fsname);
                    let (target_stores, index) = (LocalStores::of(dir), OstIndex(label.index));
                    let store = ost::check::Store::open(&path, &target_stores, index, repair)
                        .await
                        .map_err(store_error)?;
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
    /// Makes `Stores` of stores that are open and need no directory. Each has the name and the
    /// index of its target.
    pub(crate) fn from_open(
        mdts: impl IntoIterator<Item = (String, u32, Arc<mdt::store::Store>)>,
        osts: impl IntoIterator<Item = (String, OstIndex, ost::check::Store)>,
    ) -> Stores {
        let mdts: BTreeMap<u32, MdtStore> = mdts
            .into_iter()
            .map(|(svname, index, store)| (index, MdtStore { svname, store }))
            .collect();
        let first = mdts.values().next().map_or("", |mdt| &mdt.svname);
        let fsname = first.split('-').next().unwrap_or_default().to_owned();
        Stores {
            mgs: None,
            mdts,
            osts: osts
                .into_iter()
                .map(|(svname, index, store)| (index, OstStore { svname, store }))
                .collect(),
            fsname,
            unread: Vec::new(),
            data: true,
        }
    }

    /// Examines each store, and compares each OST with the MDTs. Fills in `summary`.
    pub(crate) async fn examine(
        &self,
        progress: &Progress,
        summary: &mut Summary,
    ) -> Result<Vec<TargetProblem>, FsckError> {
        let mut problems = Vec::new();
        summary.targets.clear();
        let unread = self.unread.iter();
        summary.unchecked = unread
            .map(|name| format!("{name}: its index is damaged, so its records are not checked"))
            .collect();
        summary.objects = 0;
        let targets = usize::from(self.mgs.is_some()) + self.mdts.len() + self.osts.len();
        progress.begin(targets);
        if let Some((svname, path, mgs_stores)) = &self.mgs {
            summary.targets.push(svname.clone());
            let index = mgs_stores
                .open_index_read_only()
                .await
                .map_err(store_error(svname))?;
            if let Err(e) = mgs::check(index).await {
                problems.push(TargetProblem {
                    target: svname.clone(),
                    problem: Problem::Mgs,
                    finding: Finding {
                        kind: "unreadable log",
                        fid: None,
                        place: path.display().to_string(),
                        expected: "configuration logs as the MGS writes them".into(),
                        found: e.to_string(),
                        repair: None,
                    },
                });
            }
            progress.finish_target();
        }
        let examined = self.examine_mdts(progress, summary, &mut problems).await?;
        for (index, ost) in &self.osts {
            summary.targets.push(ost.svname.clone());
            let mut ost_problems = Vec::new();
            let sequences = ost
                .store
                .sequences(progress, &mut ost_problems)
                .await
                .map_err(store_error(&ost.svname))?;
            let mut cross = cross::CrossCheck::new(*index, &sequences, &examined);
            let mut with_data = Vec::new();
            let objects = ost.store.for_each_object(progress, &mut ost_problems, |object| {
                summary.objects += 1;
                if self.data {
                    with_data.push(object.fid);
                }
                cross.add_object(object);
            });
            objects.await.map_err(store_error(&ost.svname))?;
            let data = ost
                .store
                .check_data(&with_data, progress, &mut ost_problems)
                .await;
            data.map_err(store_error(&ost.svname))?;
            for problem in ost_problems {
                // A crash can leave the record of a destroyed object without its data file. If no
                // layout names the object, do not report it.
                if let ost::check::Problem::DamagedFile { fid, .. } = &problem
                    && !examined.mdts.is_empty()
                    && !examined.mdts.values().any(|mdt| is_claimed(mdt, *index, fid))
                {
                    continue;
                }
                problems.push(TargetProblem {
                    target: ost.svname.clone(),
                    finding: problem.finding(),
                    problem: Problem::Ost(*index, problem),
                });
            }
            for problem in cross.finish() {
                let finding = problem.finding(self).await.map_err(store_error(&ost.svname))?;
                problems.push(TargetProblem {
                    target: ost.svname.clone(),
                    finding,
                    problem: Problem::Cross(problem),
                });
            }
            progress.finish_target();
        }
        Ok(problems)
    }

    /// Examines the MDTs.
    async fn examine_mdts(
        &self,
        progress: &Progress,
        summary: &mut Summary,
        problems: &mut Vec<TargetProblem>,
    ) -> Result<ExaminedMdts, FsckError> {
        let mut mdts = BTreeMap::new();
        summary.counts = Default::default();
        for (&index, mdt) in &self.mdts {
            summary.targets.push(mdt.svname.clone());
            // The index of MDT0000 is the lowest one.
            let mdt0_fldb = mdts.get(&0).map(|mdt0: &mdt::check::Examination| &mdt0.fldb[..]);
            let mut found = mdt::check::examine(&mdt.store, index, mdt0_fldb, progress)
                .await
                .map_err(store_error(&mdt.svname))?;
            summary.counts += found.counts;
            for problem in std::mem::take(&mut found.problems) {
                problems.push(TargetProblem {
                    target: mdt.svname.clone(),
                    finding: problem.finding(&mdt.store).await,
                    problem: Problem::Mdt(index, problem),
                });
            }
            found.claims.sort_unstable();
            mdts.insert(index, found);
            progress.finish_target();
        }
        for (index, problem) in mdt::check::compare(&mdts) {
            let Some(mdt) = self.mdts.get(&index) else {
                continue;
            };
            problems.push(TargetProblem {
                target: mdt.svname.clone(),
                finding: problem.finding(&mdt.store).await,
                problem: Problem::Mdt(index, problem),
            });
        }
        if mdts.is_empty() {
            let reason = match self.unread.iter().any(|name| name.contains("-MDT")) {
                true => "no MDT can be read",
                false => "no MDT was given",
            };
            summary.unchecked.push(format!(
                "{reason}: names are not checked, and objects are not compared with files"
            ));
        }
        let missing = missing_mdts(&mdts);
        for mdt in missing.iter().filter(|_| !mdts.is_empty()) {
            let name = format!("{}-MDT{mdt:04x}", self.fsname);
            let reason = match self.unread.contains(&name) {
                true => "cannot be read",
                false => "was not given",
            };
            summary.unchecked.push(format!(
                "{name} {reason}: its names and files are not checked, and objects that no file of another MDT has are not reported, because they may belong to its files"
            ));
        }
        for ost in missing_osts(mdts.values(), &self.osts) {
            let name = format!("{}-OST{ost:04x}", self.fsname);
            if !self.unread.contains(&name) {
                let text = format!("{name} was not given: objects on it are not checked");
                summary.unchecked.push(text);
            }
        }
        Ok(ExaminedMdts {
            is_complete: missing.is_empty(),
            mdts,
        })
    }

    pub(crate) fn repairer(&self) -> Repairer<'_> {
        Repairer::new(self)
    }

    /// Waits until all changes are on disk.
    pub(crate) async fn sync(&self) -> Result<(), FsckError> {
        for mdt in self.mdts.values() {
            mdt.store.index().sync().await.map_err(store_error(&mdt.svname))?;
        }
        for ost in self.osts.values() {
            ost.store.sync().await.map_err(store_error(&ost.svname))?;
        }
        Ok(())
    }
}

/// Whether the index of this target has damage outside of its journals.
fn has_damaged_index(damaged: &[TargetProblem], target: &str) -> bool {
    let mut of_indexes = damaged.iter().filter(|p| matches!(p.problem, Problem::Index));
    of_indexes.any(|problem| problem.target == target)
}

fn damaged_index(damage: &FileDamage) -> Finding {
    Finding {
        kind: "damaged index",
        fid: None,
        place: damage.file.display().to_string(),
        expected: "the contents that the index wrote".into(),
        found: damage.why.clone(),
        repair: Some(
            "rebuilds the index from all records that can be read; the names, inodes and objects of lost records are \
             then reported; the old index is kept in the target's directory as index.damaged-N (N: a serial number)",
        ),
    }
}

fn damaged_journal(damage: &Damage) -> Finding {
    Finding {
        kind: "damaged journal",
        fid: None,
        place: damage.journal.display().to_string(),
        expected: "complete batches up to its end".into(),
        found: format!(
            "damage from byte {} to byte {}, followed by {} bytes of complete batches",
            damage.bytes.start, damage.bytes.end, damage.complete_after
        ),
        repair: Some(
            "removes the damaged bytes; the changes in them are lost; a copy of the journal is kept in \
             the target's directory as damaged-N-M.jnl (N: a serial number, M: the journal)",
        ),
    }
}

/// MDTs with sequences that are not among the targets. MDT0000 knows all of them.
fn missing_mdts(examined: &BTreeMap<u32, mdt::check::Examination>) -> BTreeSet<u32> {
    let ranges = examined.values().flat_map(|mdt| &mdt.fldb);
    let of_mdts = ranges.filter(|range| range.lsr_flags == LU_SEQ_RANGE_MDT);
    let mut missing: BTreeSet<u32> = of_mdts.map(|range| range.lsr_index).chain([0]).collect();
    missing.retain(|index| !examined.contains_key(index));
    missing
}

/// OSTs that layouts name or that an MDT uses for new objects, but that are not among the targets.
fn missing_osts<'a>(
    examined: impl Iterator<Item = &'a mdt::check::Examination>,
    given: &BTreeMap<OstIndex, OstStore>,
) -> BTreeSet<OstIndex> {
    let named = examined.flat_map(|mdt| {
        let claimed = mdt.claims.iter().map(|claim| claim.ost);
        claimed.chain(mdt.last_used.keys().copied())
    });
    named.filter(|ost| !given.contains_key(ost)).collect()
}

/// Whether a layout names the object; the claims are sorted.
fn is_claimed(found: &mdt::check::Examination, ost: OstIndex, object: &Fid) -> bool {
    let key = (ost, (object.f_seq, object.f_oid));
    found
        .claims
        .binary_search_by_key(&key, |c| (c.ost, c.object))
        .is_ok()
}

/// Names the target in an error of its store.
fn store_error(target: &str) -> impl FnOnce(OsdError) -> FsckError {
    let target = target.to_owned();
    move |source| match source {
        OsdError::Stopping => FsckError::Interrupted("the check is incomplete"),
        source => FsckError::Store { target, source },
    }
}
