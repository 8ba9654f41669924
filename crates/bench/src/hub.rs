//! Where the tasks of several processes meet, as `mpirun` or `srun` starts them, without a library of theirs: the
//! process of rank 0 listens, and says where in a file that all find under the job's name; every task connects. A
//! round: each sends a frame, and the hub sends all frames to each. Who goes before a round has ended ends it for all.
//!
//! The file also has a word that no stranger knows; it is gone when all have connected.

use crate::BenchError;
use crate::team::{All, Team};
use std::fs;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the others may take to come.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often the file is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Bytes that one task may give in one round.
const FRAME_MAX: usize = 16 << 20;
/// Tasks of one job.
const TASKS_MAX: usize = 65_536;

/// One of several processes that were started together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    /// Which one.
    pub rank: usize,
    /// How many.
    pub size: usize,
    /// A name of the job's own.
    pub job: String,
    /// Whether they are all on this machine.
    pub local: bool,
}

impl World {
    /// What the environment says: that of Open MPI, of PMI (MPICH, Intel MPI), or of Slurm. `None`: a process by itself.
    pub fn of_env() -> Option<World> {
        World::of(|name| std::env::var(name).ok())
    }

    fn of(var: impl Fn(&str) -> Option<String>) -> Option<World> {
        let number = |name: &str| var(name)?.parse::<usize>().ok();
        let kinds = [
            (
                "OMPI_COMM_WORLD_RANK",
                "OMPI_COMM_WORLD_SIZE",
                "OMPI_COMM_WORLD_LOCAL_SIZE",
            ),
            ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
            ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),
        ];
        let jobs = [
            "PMIX_NAMESPACE",
            "OMPI_MCA_ess_base_jobid",
            "PMI_JOBID",
            "HYDRA_BSTRAP_EXEC",
            "SLURM_JOB_ID",
        ];
        let (rank, size, local) = kinds
            .iter()
            .find_map(|(rank, size, local)| Some((number(rank)?, number(size)?, number(local))))?;
        let job = jobs.iter().find_map(|name| var(name)).unwrap_or_default();
        let step = var("SLURM_STEP_ID").unwrap_or_default();
        let word = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        (rank < size).then(|| World {
            rank,
            size,
            job: format!("{job}-{step}").chars().map(word).collect(),
            local: local == Some(size),
        })
    }

    /// The places of this process's `threads` tasks among all. `dir` is one that all processes see. `seed` makes the
    /// word that the others must know.
    pub fn join(&self, threads: usize, dir: &Path, seed: u64) -> Result<Vec<Team>, BenchError> {
        let size = self.size.saturating_mul(threads);
        if size > TASKS_MAX {
            return Err(BenchError::Meeting {
                place: dir.display().to_string(),
                why: format!("{size} tasks are more than {TASKS_MAX}"),
            });
        }
        let file = dir.join(format!("nacre-bench-{}", self.job));
        let failed = |e: io::Error| BenchError::Meeting {
            place: file.display().to_string(),
            why: e.to_string(),
        };
        if self.rank == 0 {
            listen(&file, size, self.local, seed).map_err(failed)?;
        }
        (0..threads)
            .map(|thread| {
                let rank = self.rank * threads + thread;
                let spoke = Spoke::connect(&file, rank, size).map_err(failed)?;
                Ok(Team::at_hub(rank, size, spoke))
            })
            .collect()
    }
}

/// A task's connection to the hub.
pub(crate) struct Spoke {
    from: BufReader<TcpStream>,
    to: BufWriter<TcpStream>,
    size: usize,
}

impl Spoke {
    fn connect(file: &Path, rank: usize, size: usize) -> io::Result<Spoke> {
        let begun = Instant::now();
        loop {
            // Before the hub is there, there is no file, or an old one.
            match Spoke::try_connect(file, rank, size) {
                Ok(spoke) => return Ok(spoke),
                Err(e) if begun.elapsed() > PATIENCE => return Err(e),
                Err(_) => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    fn try_connect(file: &Path, rank: usize, size: usize) -> io::Result<Spoke> {
        let text = fs::read_to_string(file)?;
        let bad = || io::Error::other("not a meeting place of nacre bench");
        let (place, word) = text.trim_end().split_once(' ').ok_or_else(bad)?;
        let addr = place.to_socket_addrs()?.next().ok_or_else(bad)?;
        let stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
        stream.set_nodelay(true)?;
        let mut spoke = Spoke {
            from: BufReader::new(stream.try_clone()?),
            to: BufWriter::new(stream),
            size,
        };
        write_frame(&mut spoke.to, format!("{word} {rank} {size}").as_bytes())?;
        spoke.to.flush()?;
        match read_frame(&mut spoke.from)?.as_slice() {
            b"welcome" => Ok(spoke),
            _ => Err(bad()),
        }
    }

    /// One round.
    pub(crate) fn exchange(&mut self, mine: &[u8]) -> Result<All, BenchError> {
        let round = || {
            write_frame(&mut self.to, mine)?;
            self.to.flush()?;
            let all: io::Result<Vec<Vec<u8>>> = (0..self.size).map(|_| read_frame(&mut self.from)).collect();
            all
        };
        let mut round = round;
        round().map(Arc::new).map_err(|_| BenchError::Apart)
    }
}

fn write_frame(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    to.write_all(&len.to_le_bytes())?;
    to.write_all(bytes)
}

fn read_frame(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > FRAME_MAX {
        return Err(io::Error::other("a frame that is too long"));
    }
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Begins to listen, says where, and lets a thread do the rest.
fn listen(file: &Path, size: usize, local: bool, seed: u64) -> io::Result<()> {
    let addr = if local {
        Ipv4Addr::LOCALHOST
    } else {
        Ipv4Addr::UNSPECIFIED
    };
    let listener = TcpListener::bind((addr, 0))?;
    let host = match local {
        true => Ipv4Addr::LOCALHOST.to_string(),
        false => rustix::system::uname().nodename().to_string_lossy().into_owned(),
    };
    let word = format!("{seed:016x}");
    let new = PathBuf::from(format!("{}.new", file.display()));
    let _ = fs::remove_file(&new);
    let mut out = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    writeln!(out, "{host}:{} {word}", listener.local_addr()?.port())?;
    drop(out);
    fs::rename(&new, file)?;
    let file = file.to_owned();
    std::thread::Builder::new()
        .name("hub".to_owned())
        .spawn(move || {
            let come = welcome(&listener, &word, size);
            let _ = fs::remove_file(&file);
            // An error here is what the tasks see too: their connections end.
            if let Ok(spokes) = come {
                let _ = serve(spokes);
            }
        })?;
    Ok(())
}

/// Waits until every task is there.
fn welcome(listener: &TcpListener, word: &str, size: usize) -> io::Result<Vec<TcpStream>> {
    let mut spokes: Vec<Option<TcpStream>> = std::iter::repeat_with(|| None).take(size).collect();
    let mut missing = size;
    while missing > 0 {
        let (mut stream, _) = listener.accept()?;
        // A stranger may not keep the others waiting.
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let Ok(hello) = read_frame(&mut stream) else {
            continue;
        };
        let text = String::from_utf8_lossy(&hello).into_owned();
        let rank = (0..size).find(|rank| text == format!("{word} {rank} {size}"));
        if let Some(place) = rank.and_then(|rank| spokes.get_mut(rank)) {
            stream.set_read_timeout(None)?;
            stream.set_nodelay(true)?;
            write_frame(&mut stream, b"welcome")?;
            missing -= usize::from(place.is_none());
            *place = Some(stream);
        }
    }
    Ok(spokes.into_iter().flatten().collect())
}

/// Round after round, until somebody goes.
fn serve(mut spokes: Vec<TcpStream>) -> io::Result<()> {
    loop {
        let mut all = Vec::new();
        for spoke in &mut spokes {
            write_frame(&mut all, &read_frame(spoke)?)?;
        }
        for spoke in &mut spokes {
            spoke.write_all(&all)?;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::World;
    use crate::BenchError;
    use std::collections::HashMap;

    fn world(rank: usize) -> World {
        World {
            rank,
            size: 3,
            job: "job".to_owned(),
            local: true,
        }
    }

    #[test]
    fn processes_find_each_other_and_meet() {
        let dir = tempfile::tempdir().unwrap();
        // Of an earlier job that died: nobody listens there.
        std::fs::write(dir.path().join("nacre-bench-job"), "127.0.0.1:1 0\n").unwrap();
        std::thread::scope(|scope| {
            for rank in [2, 1, 0] {
                let at = dir.path();
                scope.spawn(move || {
                    let teams = world(rank).join(2, at, 7).unwrap();
                    std::thread::scope(|scope| {
                        for mut team in teams {
                            scope.spawn(move || {
                                for round in 0..50 {
                                    let all = team.numbers(round + team.rank() as u64).unwrap();
                                    assert_eq!(all, (round..round + 6).collect::<Vec<u64>>());
                                }
                            });
                        }
                    });
                });
            }
        });
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_process_that_dies_ends_the_round_of_the_others() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let at = dir.path();
                scope.spawn(move || {
                    let mut team = world(rank).join(1, at, 7).unwrap().remove(0);
                    team.any(false).unwrap();
                    if rank != 2 {
                        assert!(matches!(team.any(false), Err(BenchError::Apart)));
                    }
                });
            }
        });
    }

    #[test]
    fn the_environment_of_each_launcher_is_understood() {
        let of = |vars: &[(&str, &str)]| {
            let vars: HashMap<String, String> = vars
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect();
            World::of(|name| vars.get(name).cloned())
        };
        assert_eq!(of(&[]), None);
        let ompi = of(&[
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
            ("PMIX_NAMESPACE", "12/34"),
        ]);
        assert_eq!(
            ompi,
            Some(World {
                rank: 3,
                size: 4,
                job: "12-34-".to_owned(),
                local: true
            })
        );
        let pmi = of(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")]).unwrap();
        assert_eq!((pmi.rank, pmi.size, pmi.local), (0, 2, false));
        assert_eq!(of(&[("PMI_RANK", "2"), ("PMI_SIZE", "2")]), None);
    }
}
