//! The phases of one task.

use super::TaskResult;
use super::plan::{ItemKind, Plan, Tree, test_dir};
use crate::subject::{NewFile, Subject, operation_error};
use crate::task::{Meter, Task};
use crate::{BenchError, ENOENT, Figure};
use bytes::Bytes;
use std::fs;
use std::time::{Duration, Instant};

/// "No value" in an exchange of numbers.
const NO_VALUE: u64 = u64::MAX;

/// The run of one task.
pub(super) struct TaskRun<'a> {
    plan: &'a Plan,
    task: &'a mut Task,
    pub(super) result: TaskResult,
    /// Number of participating tasks. Their ranks are below it.
    active: usize,
    iteration: usize,
    /// Items of each task in each directory; a stonewall changes the number.
    items_per_dir: u64,
}

/// The result of [`Task::phase`].
type PhaseResult = Result<(Option<Figure>, Result<(), BenchError>), BenchError>;

impl<'a> TaskRun<'a> {
    pub(super) fn new(plan: &'a Plan, task: &'a mut Task) -> TaskRun<'a> {
        let (active, items_per_dir) = (task.comm.size(), plan.items_per_dir);
        TaskRun {
            plan,
            task,
            result: TaskResult::default(),
            active,
            iteration: 0,
            items_per_dir,
        }
    }

    /// Runs all iterations for all numbers of tasks.
    pub(super) fn run(&mut self) -> Result<(), BenchError> {
        let node = rustix::system::uname().nodename().to_bytes().to_vec();
        let mut nodes = self.task.comm.exchange(node)?.to_vec();
        nodes.sort();
        nodes.dedup();
        self.result.nodes = nodes.len();
        if self.is_first_of_dir() {
            self.result.root_to_clean_up = self.task.subject.make_dir("", "")?;
        }
        for active in self.plan.task_counts(self.task.comm.size()) {
            self.active = active;
            let start_time = Instant::now();
            for iteration in 0.. {
                if !self.has_next_iteration(iteration, start_time)? {
                    break;
                }
                self.iteration = iteration;
                self.result.iterations = self.result.iterations.max(iteration + 1);
                self.run_iteration()?;
            }
        }
        // Without a removal phase, the files stay for a later run.
        if !self.plan.options.remove_only {
            self.result.dirs_to_clean_up.clear();
            self.result.root_to_clean_up = false;
        }
        Ok(())
    }

    /// Whether this is the first task in its directory.
    fn is_first_of_dir(&self) -> bool {
        self.task.comm.rank() < self.plan.options.dir_count.max(1)
    }

    /// Whether there is another iteration. Rank 0's clock decides for all tasks.
    fn has_next_iteration(&mut self, done: usize, start_time: Instant) -> Result<bool, BenchError> {
        match self.plan.options.duration {
            None => Ok(done < self.plan.options.iterations),
            Some(duration) => {
                let time_is_left = done == 0 || start_time.elapsed() < duration;
                let first = self.task.is_first();
                self.task.comm.any(first && time_is_left)
            }
        }
    }

    fn run_iteration(&mut self) -> Result<(), BenchError> {
        let options = &self.plan.options;
        self.items_per_dir = self.plan.items_per_dir;
        if self.is_first_of_dir() {
            for round in 0..self.plan.test_dir_count {
                let dir = test_dir(self.iteration, round);
                if self.task.subject.make_dir("", &dir)? && options.create_only {
                    self.result.dirs_to_clean_up.push(dir.clone());
                }
                if let Some(stripes) = options.stripes.filter(|s| *s > 0 && options.create_only) {
                    self.task.subject.set_stripes(&dir, stripes)?;
                }
            }
        }
        if options.create_only {
            let outcome = self.make_or_remove_trees("Tree creation", true);
            self.record(outcome)?;
        }
        for kind in [ItemKind::Dir, ItemKind::File] {
            let is_selected = match kind {
                ItemKind::Dir => options.dirs_only,
                ItemKind::File => options.files_only,
            };
            if is_selected {
                std::thread::sleep(options.pre_delay);
                self.run_item_phases(kind)?;
            }
        }
        if options.remove_only {
            let outcome = self.make_or_remove_trees("Tree removal", false);
            self.record(outcome)?;
            if self.is_first_of_dir() {
                for round in 0..self.plan.test_dir_count {
                    let dir = test_dir(self.iteration, round);
                    match self.task.subject.remove_dir("", &dir) {
                        // Another mount has the same directory, and its task removed it.
                        Err(e) if e.has_errno(ENOENT) && options.dir_count > 1 => {}
                        removed => removed?,
                    }
                    self.result.dirs_to_clean_up.retain(|created| *created != dir);
                }
            }
        }
        Ok(())
    }

    /// Records the figure of a phase, and returns the phase's error.
    fn record(&mut self, phase: PhaseResult) -> Result<(), BenchError> {
        let (figure, outcome) = phase?;
        if let Some(mut figure) = figure {
            figure.iteration = self.iteration;
            figure.tasks = self.active;
            figure.task_rates.truncate(self.active);
            figure.accumulate(&mut self.result.figures);
            self.result.figures.push(figure);
        }
        outcome
    }

    /// Creates or removes the trees.
    fn make_or_remove_trees(&mut self, operation: &'static str, make: bool) -> PhaseResult {
        let plan = self.plan;
        let rank = self.task.comm.rank();
        let owners = match (plan.options.unique_dir_per_task, plan.options.collective_creates) {
            (true, false) if rank < self.active => rank..rank + 1,
            (true, true) if rank == 0 => 0..self.active,
            (false, _) if rank == 0 => 0..1,
            _ => 0..0,
        };
        let trees: Vec<Tree> = (0..plan.test_dir_count)
            .map(|round| test_dir(self.iteration, round))
            .flat_map(|dir| owners.clone().map(move |owner| (dir.clone(), owner)))
            .map(|(dir, owner)| plan.tree(&dir, owner))
            .collect();
        let mut order = plan.dirs_depth_first();
        if !make {
            order.reverse();
        }
        self.task.phase(operation, |meter, subject, _| {
            for tree in &trees {
                for dir in order.iter().filter_map(|d| tree.paths.get(*d as usize)) {
                    let (parent, name) = dir;
                    meter.time(|| match make {
                        true => subject.make_dir(parent, name).map(drop),
                        false => subject.remove_dir(parent, name),
                    })?;
                }
            }
            Ok(())
        })
    }

    /// Runs the phases on items of one kind.
    fn run_item_phases(&mut self, kind: ItemKind) -> Result<(), BenchError> {
        let options = &self.plan.options;
        if options.create_only {
            let phase = self.create(kind);
            self.record(phase)?;
        } else if kind == ItemKind::File {
            self.read_stonewall_file()?;
        }
        if options.stat_only {
            let phase = self.for_each_item(kind, 1, stat_name(kind), |subject, dir, name, _| {
                subject.stat(dir, name)
            });
            self.record(phase)?;
        }
        match kind {
            ItemKind::Dir if options.rename_only => {
                let phase = self.rename();
                self.record(phase)?;
            }
            ItemKind::File if options.read_only => {
                let phase = self.read();
                self.record(phase)?;
            }
            _ => {}
        }
        if options.remove_only {
            let phase = self.remove(kind);
            self.record(phase)?;
        }
        Ok(())
    }

    /// The ranks of the tasks that own this task's items in a phase: the task that is `strides`
    /// times `-N` ranks further. Empty if this task does not participate. With `by_first`, rank 0
    /// works on all items.
    fn owners(&self, strides: usize, by_first: bool) -> std::ops::Range<usize> {
        let rank = self.task.comm.rank();
        match (by_first, rank) {
            (true, 0) => 0..self.active,
            (true, _) => 0..0,
            (false, rank) if rank >= self.active => 0..0,
            (false, rank) => {
                let owner = (rank + strides * self.plan.options.stride) % self.active;
                owner..owner + 1
            }
        }
    }

    /// The trees of some owners, each with its owner. Resolves their paths before the phase, unless
    /// `-t` adds that time to the phase.
    fn trees_of(&self, owners: std::ops::Range<usize>) -> Result<Vec<(usize, Tree)>, BenchError> {
        let mut trees = Vec::new();
        for round in 0..self.plan.test_dir_count {
            for owner in owners.clone() {
                let tree = self.plan.tree(&test_dir(self.iteration, round), owner);
                if !self.plan.options.time_unique_dir_overhead {
                    for dir in self.plan.dirs_with_items() {
                        self.task.subject.enter(tree.dir(dir))?;
                    }
                }
                trees.push((owner, tree));
            }
        }
        Ok(trees)
    }

    fn create(&mut self, kind: ItemKind) -> PhaseResult {
        let plan = self.plan;
        let options = &plan.options;
        let trees = self.trees_of(self.owners(0, options.collective_creates))?;
        let order = plan.dirs_with_items();
        let per_dir = self.items_per_dir;
        let stonewall = options.stonewall.filter(|_| kind == ItemKind::File);
        let mut stonewall_result = None;
        let phase = self.task.phase(create_name(kind), |meter, subject, comm| {
            let start_time = Instant::now();
            let create_items = |meter: &mut Meter<'_>, from: u64, to: u64, limit: Option<Duration>| {
                for (owner, tree) in &trees {
                    for dir in &order {
                        for item in dir * per_dir + from..dir * per_dir + to {
                            create(plan, kind, subject, meter, (tree.dir(*dir), *owner, item))?;
                            if limit.is_some_and(|limit| start_time.elapsed() >= limit) {
                                return Ok(());
                            }
                        }
                    }
                }
                Ok(())
            };
            if stonewall.is_none() {
                meter.expect((trees.len() * order.len()) as u64 * per_dir);
            }
            let outcome = create_items(meter, 0, per_dir, stonewall);
            if stonewall.is_some() {
                // All tasks exchange their numbers here, also those that failed or were
                // interrupted.
                let done = meter.done();
                let all = comm.exchange_numbers(done)?;
                let most = all.iter().copied().max().unwrap_or(0);
                let total = all.iter().sum::<u64>();
                stonewall_result = Some((most, total, start_time.elapsed().as_secs_f64()));
                outcome?;
                create_items(meter, done, most, None)?;
            } else {
                outcome?;
            }
            sync(plan, subject)
        });
        if let Some((most, total, seconds)) = stonewall_result {
            self.items_per_dir = most;
            if self.task.is_first() {
                let (items, time) = self.result.stonewall.unwrap_or_default();
                self.result.stonewall = Some((items + total, time + seconds));
                if let Some(file) = &options.stonewall_file {
                    fs::write(file, format!("{most}\n")).map_err(|e| stonewall_file_error(file, &e))?;
                }
            }
        }
        phase
    }

    /// Sets the number of files of each task to that of an earlier run with a stonewall, which
    /// wrote it to a file.
    fn read_stonewall_file(&mut self) -> Result<(), BenchError> {
        let Some(file) = &self.plan.options.stonewall_file else {
            return Ok(());
        };
        let contribution = match self.task.is_first() {
            true => {
                let text = fs::read_to_string(file).map_err(|e| stonewall_file_error(file, &e))?;
                text.trim().parse().unwrap_or(NO_VALUE)
            }
            false => NO_VALUE,
        };
        let items = self.task.comm.exchange_numbers(contribution)?.first().copied();
        match items.filter(|i| *i != NO_VALUE) {
            Some(items) => self.items_per_dir = items,
            None => return Err(stonewall_file_error(file, &"it contains no number")),
        }
        Ok(())
    }

    /// Executes `work` on every item of the task that is `strides` times `-N` ranks further, in the
    /// order of numbers or at random.
    fn for_each_item(
        &mut self,
        kind: ItemKind,
        strides: usize,
        operation: &'static str,
        mut work: impl FnMut(&dyn Subject, &str, &str, u64) -> Result<(), BenchError>,
    ) -> PhaseResult {
        let plan = &Plan {
            items_per_dir: self.items_per_dir,
            ..self.plan.clone()
        };
        let trees = self.trees_of(self.owners(strides, false))?;
        let items = 0..plan.items_per_tree();
        let shuffled: Option<Vec<u64>> = plan.options.random_seed.map(|seed| {
            let mut order: Vec<u64> = items.clone().collect();
            fastrand::Rng::with_seed(seed.wrapping_add(self.task.comm.rank() as u64)).shuffle(&mut order);
            order
        });
        self.task.phase(operation, |meter, subject, _| {
            meter.expect(trees.len() as u64 * items.end);
            for (owner, tree) in &trees {
                for i in items.clone() {
                    let chosen = shuffled.as_ref().and_then(|order| order.get(i as usize));
                    let (dir, item) = plan.item(chosen.copied().unwrap_or(i));
                    let name = plan.name(kind, *owner, item);
                    meter.time(|| work(subject, tree.dir(dir), &name, item))?;
                }
            }
            sync(plan, subject)
        })
    }

    fn read(&mut self) -> PhaseResult {
        let options = &self.plan.options;
        let (bytes, verify) = (options.read_bytes, options.verify_read);
        let mut wrong = 0;
        let phase = self.for_each_item(ItemKind::File, 2, "File read", |subject, dir, name, item| {
            let data = subject.open(dir, name, bytes)?;
            if data.len() < bytes {
                let reason = format!("expected {bytes} bytes, found {}", data.len());
                return Err(operation_error(
                    subject.name(),
                    "read",
                    format!("{dir}/{name}"),
                    &reason,
                ));
            }
            // Always check the item number at the start, which costs almost nothing.
            let checked = if verify { bytes } else { bytes.min(8) };
            wrong += u64::from(data[..checked] != contents(item, checked)[..]);
            Ok(())
        });
        let sum = self.task.comm.exchange_numbers(wrong)?.iter().sum::<u64>();
        self.result.wrong_reads += sum;
        phase
    }

    /// Renames the subdirectories of each directory in a ring: the first one aside, each other one
    /// to the name before it, and the first one to the last name. The names are the same at the
    /// end.
    fn rename(&mut self) -> PhaseResult {
        let plan = self.plan;
        let per_dir = self.items_per_dir;
        let trees = self.trees_of(self.owners(2, false))?;
        self.task.phase("Directory rename", |meter, subject, _| {
            for (owner, tree) in &trees {
                for dir in plan.dirs_with_items() {
                    let name = |i: u64| plan.name(ItemKind::Dir, *owner, dir * per_dir + i);
                    let aside = format!("{}-aside", name(0));
                    let steps = std::iter::once((name(0), aside.clone()))
                        .chain((1..per_dir).map(|i| (name(i), name(i - 1))))
                        .chain([(aside, name(per_dir.saturating_sub(1)))]);
                    for (from, to) in steps.filter(|_| per_dir > 0) {
                        meter.time(|| subject.rename(tree.dir(dir), &from, &to))?;
                    }
                }
            }
            sync(plan, subject)
        })
    }

    fn remove(&mut self, kind: ItemKind) -> PhaseResult {
        let plan = self.plan;
        let per_dir = self.items_per_dir;
        let by_first = plan.options.collective_creates;
        let mut owners = self.owners(3, by_first);
        if plan.options.shared_file && !self.task.is_first() {
            owners = 0..0;
        }
        let trees = self.trees_of(owners)?;
        self.task.phase(remove_name(kind), |meter, subject, _| {
            meter.expect((trees.len() * plan.dirs_with_items().len()) as u64 * per_dir);
            for (owner, tree) in &trees {
                for dir in plan.dirs_with_items() {
                    for item in dir * per_dir..(dir + 1) * per_dir {
                        let name = plan.name(kind, *owner, item);
                        meter.time(|| match kind {
                            ItemKind::Dir => subject.remove_dir(tree.dir(dir), &name),
                            ItemKind::File => subject.unlink(tree.dir(dir), &name),
                        })?;
                    }
                }
            }
            sync(plan, subject)
        })
    }
}

fn create(
    plan: &Plan,
    kind: ItemKind,
    subject: &dyn Subject,
    meter: &mut Meter<'_>,
    (dir, owner, item): (&str, usize, u64),
) -> Result<(), BenchError> {
    let options = &plan.options;
    let name = plan.name(kind, owner, item);
    match kind {
        ItemKind::Dir => meter.time(|| subject.make_dir(dir, &name)).map(drop),
        ItemKind::File if options.make_node => meter.time(|| subject.mknod(dir, &name)),
        ItemKind::File => {
            let new = NewFile {
                exclusive: false,
                delayed: options.stripes == Some(0),
                data: contents(item, options.write_bytes),
                sync: options.sync_file,
                read_back: options.verify_write,
            };
            meter.time(|| subject.create(dir, &name, &new))
        }
    }
}

/// The content of a file: its item number, then a pattern.
fn contents(item: u64, bytes: usize) -> Bytes {
    let number = item.to_le_bytes();
    let pattern = (number.len()..bytes).map(|i| (i + 1) as u8);
    number.iter().copied().chain(pattern).take(bytes).collect()
}

/// Syncs at the end of a phase if requested.
fn sync(plan: &Plan, subject: &dyn Subject) -> Result<(), BenchError> {
    match plan.options.call_sync {
        true => subject.sync(),
        false => Ok(()),
    }
}

fn stonewall_file_error(file: &std::path::Path, reason: &dyn std::fmt::Display) -> BenchError {
    BenchError::Options(format!("-x {}: {reason}", file.display()))
}

fn create_name(kind: ItemKind) -> &'static str {
    match kind {
        ItemKind::Dir => "Directory creation",
        ItemKind::File => "File creation",
    }
}

fn stat_name(kind: ItemKind) -> &'static str {
    match kind {
        ItemKind::Dir => "Directory stat",
        ItemKind::File => "File stat",
    }
}

fn remove_name(kind: ItemKind) -> &'static str {
    match kind {
        ItemKind::Dir => "Directory removal",
        ItemKind::File => "File removal",
    }
}
