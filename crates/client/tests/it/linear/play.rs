//! Tasks on several mounts that concurrently run random operations, determined by a seed, on a few
//! names of one directory. They record the operations and their results.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use client::{Attr, Client, Cred, OpenFlags};
use fastrand::Rng;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use wire::{Errno, Fid};

use super::history::{Answer, Event, File, Op};

const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const S_IFDIR: u32 = 0o040_000;

/// The parameters of a round.
#[derive(Clone, Copy, Debug)]
pub struct RoundConfig {
    /// Number of names that all tasks use.
    pub names: usize,
    pub tasks: usize,
    /// Operations of each task.
    pub ops: usize,
    /// Whether tasks also link and rename names and read files by FID.
    pub coupled: bool,
    /// Additional permanent names, so that the directory has several pages.
    pub others: usize,
}

/// A round: its directory and its history.
pub struct Round {
    config: RoundConfig,
    dir: Fid,
    /// A file with a permanent name in another directory.
    pub elsewhere: File,
    /// The logical clock.
    clock: AtomicU64,
    /// The history so far.
    events: Mutex<Vec<Event>>,
}

/// The text of a name, which the history knows by its number.
fn name_text(name: usize) -> Vec<u8> {
    format!("name{name}").into_bytes()
}

fn file(attr: &Attr) -> File {
    File {
        fid: attr.fid,
        dir: attr.is_dir(),
    }
}

impl Round {
    /// Creates a new directory below `parent`.
    pub async fn begin(client: &Client, parent: Fid, seed: u64, config: RoundConfig) -> Round {
        let root = Cred::root();
        let name = format!("{seed}");
        let round_dir = client.mkdir(&root, parent, name.as_bytes(), 0o755).await;
        let round_dir = round_dir.unwrap().attr.fid;
        let mode = S_IFREG | 0o644;
        let elsewhere = client
            .mknod(&root, round_dir, b"elsewhere", mode, 0)
            .await
            .unwrap();
        let elsewhere = file(&elsewhere.attr);
        let dir = client
            .mkdir(&root, round_dir, b"dir", 0o755)
            .await
            .unwrap()
            .attr
            .fid;
        for number in 0..config.others {
            let other = format!("other{number}");
            let created = client.mknod(&root, dir, other.as_bytes(), mode, 0).await;
            created.unwrap();
        }
        Round {
            config,
            dir,
            elsewhere,
            clock: AtomicU64::new(0),
            events: Mutex::default(),
        }
    }

    /// Runs all tasks to their end, then reads all names on each mount. Returns the history.
    pub async fn play(self: &Arc<Self>, mounts: &[Arc<Client>], seed: u64) -> Vec<Event> {
        let mut tasks = JoinSet::new();
        for (task, client) in (0..self.config.tasks).zip(mounts.iter().cycle()) {
            let player = Player {
                round: self.clone(),
                client: client.clone(),
                task,
                random: Rng::with_seed(seed.wrapping_mul(1000) + task as u64),
                known: vec![self.elsewhere],
            };
            tasks.spawn(player.play());
        }
        while let Some(result) = tasks.join_next().await {
            result.unwrap();
        }
        for (index, client) in mounts.iter().enumerate() {
            let mut reader = Player {
                round: self.clone(),
                client: client.clone(),
                task: self.config.tasks + index,
                random: Rng::with_seed(seed),
                known: Vec::new(),
            };
            reader.list().await;
            for name in 0..self.config.names {
                reader.record(Op::Lookup { name }).await;
            }
            reader.count_dirs().await;
        }
        std::mem::take(&mut *self.events.lock())
    }

    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }
}

struct Player {
    round: Arc<Round>,
    client: Arc<Client>,
    task: usize,
    random: Rng,
    /// Files that the task has seen.
    known: Vec<File>,
}

impl Player {
    async fn play(mut self) {
        for _ in 0..self.round.config.ops {
            match self.choose() {
                Some(op) => self.record(op).await,
                None => self.list().await,
            }
        }
    }

    /// The next operation; `None`: a listing.
    fn choose(&mut self) -> Option<Op> {
        let names = self.round.config.names;
        let name = self.random.usize(0..names);
        let kinds = if self.round.config.coupled { 17 } else { 11 };
        Some(match self.random.u8(0..kinds) {
            0 => return None,
            1 => Op::Create { name, excl: false },
            2 => Op::Create { name, excl: true },
            3 | 4 => Op::Mknod { name },
            5 => Op::Mkdir { name },
            6 | 7 => Op::Unlink { name },
            8 => Op::Rmdir { name },
            9 | 10 => Op::Lookup { name },
            11 | 12 => Op::Link {
                file: self.some_file(),
                name,
            },
            13 | 14 => {
                let to = (name + self.random.usize(1..names)) % names;
                Op::Rename { from: name, to }
            }
            _ => {
                let file = self.random.usize(0..self.known.len());
                Op::Getattr {
                    file: self.known[file],
                }
            }
        })
    }

    /// A known file that is not a directory.
    fn some_file(&mut self) -> File {
        let files: Vec<File> = self.known.iter().copied().filter(|f| !f.dir).collect();
        files[self.random.usize(0..files.len())]
    }

    /// Runs an operation and records its result.
    async fn record(&mut self, op: Op) {
        let start = self.round.now();
        let answer = self.run(op).await.unwrap_or_else(Answer::Failed);
        let end = self.round.now();
        if let Answer::Is(file) = answer
            && !self.known.contains(&file)
        {
            self.known.push(file);
        }
        self.add_event(start, end, op, answer);
    }

    fn add_event(&self, start: u64, end: u64, op: Op, answer: Answer) {
        self.round.events.lock().push(Event {
            start,
            end,
            task: self.task,
            op,
            answer,
        });
    }

    async fn run(&self, op: Op) -> Result<Answer, Errno> {
        let (client, dir, root) = (&self.client, self.round.dir, &Cred::root());
        let is = |attr: &Attr| Answer::Is(file(attr));
        Ok(match op {
            Op::Create { name, excl } => {
                let flags = OpenFlags {
                    excl,
                    ..OpenFlags::READ_WRITE
                };
                let (found, open) = client.create(root, dir, &name_text(name), 0o644, flags).await?;
                let answer = is(&found.attr);
                drop(found);
                client.release(&open).await?;
                answer
            }
            Op::Mknod { name } => is(&client
                .mknod(root, dir, &name_text(name), S_IFREG | 0o644, 0)
                .await?
                .attr),
            Op::Mkdir { name } => is(&client.mkdir(root, dir, &name_text(name), 0o755).await?.attr),
            Op::Link { file, name } => {
                client.link(root, file.fid, dir, &name_text(name)).await?;
                Answer::Done
            }
            Op::Unlink { name } => {
                client.unlink(root, dir, &name_text(name)).await?;
                Answer::Done
            }
            Op::Rmdir { name } => {
                client.rmdir(root, dir, &name_text(name)).await?;
                Answer::Done
            }
            Op::Rename { from, to } => {
                client
                    .rename(root, (dir, &name_text(from)), (dir, &name_text(to)))
                    .await?;
                Answer::Done
            }
            Op::Lookup { name } => is(&client.lookup(root, dir, &name_text(name)).await?.attr),
            Op::Getattr { file } => Answer::Links(client.getattr(root, file.fid).await?.attr.nlink),
            Op::Listed { .. } => unreachable!("a listing covers all names"),
        })
    }

    /// Lists the whole directory. Checks that the listing has all permanent names and no name
    /// twice. Records the result for the other names.
    async fn list(&mut self) {
        let start = self.round.now();
        let handle = self.client.opendir(&Cred::root(), self.round.dir).await.unwrap();
        let (mut entries, mut offset) = (Vec::new(), 0);
        loop {
            let items = self.client.readdir(&handle, offset).await.unwrap();
            let Some(last) = items.last() else { break };
            offset = last.next;
            handle.advance(&items, items.len());
            entries.extend(items.into_iter().map(|i| i.entry));
        }
        let end = self.round.now();
        let seen: HashSet<_> = entries.iter().map(|e| e.name.clone()).collect();
        assert_eq!(seen.len(), entries.len(), "a name is listed twice: {entries:?}");
        for other in 0..self.round.config.others {
            assert!(seen.contains(format!("other{other}").as_bytes()), "other{other}");
        }
        for name in 0..self.round.config.names {
            let found = entries.iter().find(|e| e.name == name_text(name));
            let answer = found.map_or(Answer::Failed(Errno::ENOENT), |e| {
                Answer::Is(File {
                    fid: e.fid,
                    dir: u32::from(e.mode.unwrap()) & S_IFMT == S_IFDIR,
                })
            });
            self.add_event(start, end, Op::Listed { name }, answer);
        }
    }

    /// Checks, after all tasks, that the directory's link count matches its subdirectories.
    async fn count_dirs(&self) {
        let root = Cred::root();
        let mut dirs = 0;
        for name in 0..self.round.config.names {
            let found = self.client.lookup(&root, self.round.dir, &name_text(name)).await;
            dirs += u32::from(found.is_ok_and(|f| f.attr.is_dir()));
        }
        let dir = self.client.getattr(&root, self.round.dir).await.unwrap();
        assert_eq!(dir.attr.nlink, 2 + dirs);
    }
}
