//! Rendezvous of the tasks of several processes started by `mpirun` or `srun`, without an MPI
//! library. A thread of the process of rank 0, the hub, listens and publishes its address in a file
//! named after the job; every task connects to the hub. In each round, every task sends a frame (a
//! length and that many bytes) and receives the frames of all tasks. A task that ends before the
//! end of a round ends the round for all.
//!
//! The file also has a secret, so that the hub rejects other programs. The hub removes the file
//! when all tasks have connected.

use crate::BenchError;
use crate::communicator::{Communicator, Contributions};
use std::fs;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit for a task to connect to the hub, and for the hub until all tasks have connected.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(120);
/// Pause between two attempts to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Time limit for the first frame of a connection: the hub accepts one connection after the other,
/// and another program that connects may send nothing.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest frame of a task, bytes.
const FRAME_MAX: usize = 16 << 20;
/// The most tasks of a job.
const TASKS_MAX: usize = 65_536;

/// This process as one of the processes of a job of `mpirun` or `srun`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobProcess {
    /// The rank of this process.
    pub rank: usize,
    /// The number of processes.
    pub size: usize,
    /// A name that only the processes of this job share, if the launcher gives one.
    pub job: String,
    /// Whether all processes run on this machine.
    pub local: bool,
}

impl JobProcess {
    /// Reads the environment of Open MPI, of PMI (MPICH, Intel MPI), or of Slurm. `None`: a single
    /// process.
    pub fn from_env() -> Option<JobProcess> {
        JobProcess::from_vars(|name| std::env::var(name).ok())
    }

    fn from_vars(var: impl Fn(&str) -> Option<String>) -> Option<JobProcess> {
        let number = |name: &str| var(name)?.parse::<usize>().ok();
        // Variables with the rank, the number of processes, and their number on this machine.
        let launchers = [
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
        let (rank, size, local) = launchers
            .iter()
            .find_map(|(rank, size, local)| Some((number(rank)?, number(size)?, number(local))))?;
        let job = jobs.iter().find_map(|name| var(name)).unwrap_or_default();
        let step = var("SLURM_STEP_ID").unwrap_or_default();
        let clean = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        (rank < size).then(|| JobProcess {
            rank,
            size,
            job: format!("{job}-{step}").chars().map(clean).collect(),
            local: local == Some(size),
        })
    }

    /// Connects this process's `threads` tasks with all others. All processes must see the
    /// directory `dir`. If this process has rank 0, it starts the hub, and `seed` becomes the
    /// secret.
    ///
    /// # Errors
    ///
    /// The job has too many tasks, the hub cannot start, or it does not answer within two minutes.
    pub fn join(&self, threads: usize, dir: &Path, seed: u64) -> Result<Vec<Communicator>, BenchError> {
        let size = self.size.saturating_mul(threads);
        if size > TASKS_MAX {
            return Err(BenchError::Rendezvous {
                place: dir.display().to_string(),
                reason: format!("the job has {size} tasks (limit {TASKS_MAX})"),
            });
        }
        let file = dir.join(format!("nacre-bench-{}", self.job));
        let failed = |e: io::Error| BenchError::Rendezvous {
            place: file.display().to_string(),
            reason: e.to_string(),
        };
        if self.rank == 0 {
            listen(&file, size, self.local, seed).map_err(failed)?;
        }
        (0..threads)
            .map(|thread| {
                let rank = self.rank * threads + thread;
                let hub = HubConnection::connect(&file, rank, size, CONNECT_TIMEOUT).map_err(failed)?;
                Ok(Communicator::over_network(rank, size, hub))
            })
            .collect()
    }
}

/// A task's connection to the hub.
pub(crate) struct HubConnection {
    from: BufReader<TcpStream>,
    to: BufWriter<TcpStream>,
    /// Number of all tasks.
    size: usize,
}

impl HubConnection {
    fn connect(file: &Path, rank: usize, size: usize, limit: Duration) -> io::Result<HubConnection> {
        let start_time = Instant::now();
        loop {
            // Until rank 0 listens, there is no file, or an old one.
            match HubConnection::try_connect(file, rank, size, limit) {
                Ok(hub) => return Ok(hub),
                Err(e) if start_time.elapsed() > limit => return Err(e),
                Err(_) => std::thread::sleep(RETRY_INTERVAL),
            }
        }
    }

    fn try_connect(file: &Path, rank: usize, size: usize, limit: Duration) -> io::Result<HubConnection> {
        let text = fs::read_to_string(file)?;
        let format_error = || io::Error::other("not a rendezvous file of nacre bench");
        let (host_and_port, secret) = text.trim_end().split_once(' ').ok_or_else(format_error)?;
        let addr = host_and_port.to_socket_addrs()?.next().ok_or_else(format_error)?;
        let stream = TcpStream::connect_timeout(&addr, limit)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limit))?;
        let mut hub = HubConnection {
            from: BufReader::new(stream.try_clone()?),
            to: BufWriter::new(stream),
            size,
        };
        write_frame(&mut hub.to, format!("{secret} {rank} {size}").as_bytes())?;
        hub.to.flush()?;
        if read_frame(&mut hub.from)? != b"welcome" {
            return Err(format_error());
        }
        hub.from.get_ref().set_read_timeout(None)?;
        Ok(hub)
    }

    /// Executes one round.
    pub(crate) fn exchange(&mut self, contribution: &[u8]) -> Result<Contributions, BenchError> {
        let mut round = || {
            write_frame(&mut self.to, contribution)?;
            self.to.flush()?;
            let all: io::Result<Vec<Vec<u8>>> = (0..self.size).map(|_| read_frame(&mut self.from)).collect();
            all
        };
        round().map(Arc::new).map_err(|_| BenchError::PeerEnded)
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
        return Err(io::Error::other("frame too long"));
    }
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Starts the hub: listens, publishes the address, and serves all tasks in a thread.
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
    let secret = format!("{seed:016x}");
    let new_file = PathBuf::from(format!("{}.new", file.display()));
    let _ = fs::remove_file(&new_file);
    let mut out = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new_file)?;
    writeln!(out, "{host}:{} {secret}", listener.local_addr()?.port())?;
    drop(out);
    fs::rename(&new_file, file)?;
    let file = file.to_owned();
    std::thread::Builder::new()
        .name("hub".to_owned())
        .spawn(move || {
            let accepted = accept_all(&listener, &secret, size, Instant::now() + CONNECT_TIMEOUT);
            let _ = fs::remove_file(&file);
            // On an error the connections close, which ends the tasks' rounds.
            if let Ok(streams) = accepted {
                let _ = serve(streams);
            }
        })?;
    Ok(())
}

/// Accepts connections until every task has connected. Returns the connections by rank; `TimedOut`
/// if a task is missing at `deadline`.
fn accept_all(
    listener: &TcpListener,
    secret: &str,
    size: usize,
    deadline: Instant,
) -> io::Result<Vec<TcpStream>> {
    listener.set_nonblocking(true)?;
    let mut streams: Vec<Option<TcpStream>> = std::iter::repeat_with(|| None).take(size).collect();
    let mut missing = size;
    while missing > 0 {
        let mut stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() >= deadline {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                std::thread::sleep(RETRY_INTERVAL);
                continue;
            }
            Err(e) => return Err(e),
        };
        stream.set_read_timeout(Some(HELLO_TIMEOUT))?;
        let Ok(hello) = read_frame(&mut stream) else {
            continue;
        };
        let text = String::from_utf8_lossy(&hello).into_owned();
        let rank = (0..size).find(|rank| text == format!("{secret} {rank} {size}"));
        if let Some(slot) = rank.and_then(|rank| streams.get_mut(rank)) {
            stream.set_read_timeout(None)?;
            stream.set_nodelay(true)?;
            write_frame(&mut stream, b"welcome")?;
            missing -= usize::from(slot.is_none());
            *slot = Some(stream);
        }
    }
    Ok(streams.into_iter().flatten().collect())
}

/// Serves rounds until a task disconnects.
fn serve(mut streams: Vec<TcpStream>) -> io::Result<()> {
    loop {
        let mut all = Vec::new();
        for stream in &mut streams {
            write_frame(&mut all, &read_frame(stream)?)?;
        }
        for stream in &mut streams {
            stream.write_all(&all)?;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{HubConnection, JobProcess, accept_all};
    use crate::BenchError;
    use std::collections::HashMap;
    use std::io::ErrorKind;
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    fn process(rank: usize) -> JobProcess {
        JobProcess {
            rank,
            size: 3,
            job: "job".to_owned(),
            local: true,
        }
    }

    #[test]
    fn processes_connect_and_exchange() {
        let dir = tempfile::tempdir().unwrap();
        // Left by an earlier job; nothing listens there.
        std::fs::write(dir.path().join("nacre-bench-job"), "127.0.0.1:1 0\n").unwrap();
        std::thread::scope(|scope| {
            for rank in [2, 1, 0] {
                let dir = dir.path();
                scope.spawn(move || {
                    let comms = process(rank).join(2, dir, 7).unwrap();
                    std::thread::scope(|scope| {
                        for mut comm in comms {
                            scope.spawn(move || {
                                for round in 0..50 {
                                    let all = comm.exchange_numbers(round + comm.rank() as u64).unwrap();
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
    fn ended_task_ends_the_round_of_the_others() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let dir = dir.path();
                scope.spawn(move || {
                    let mut comm = process(rank).join(1, dir, 7).unwrap().remove(0);
                    comm.any(false).unwrap();
                    if rank != 2 {
                        assert!(matches!(comm.any(false), Err(BenchError::PeerEnded)));
                    }
                });
            }
        });
    }

    #[test]
    fn missing_task_and_silent_hub_are_errors_after_the_time_limit() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let missing = accept_all(&listener, "secret", 1, Instant::now());
        assert_eq!(missing.unwrap_err().kind(), ErrorKind::TimedOut);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("hub");
        std::fs::write(&file, format!("{} secret\n", listener.local_addr().unwrap())).unwrap();
        let silent = HubConnection::connect(&file, 0, 1, Duration::from_millis(10));
        assert_eq!(silent.err().map(|e| e.kind()), Some(ErrorKind::WouldBlock));
    }

    #[test]
    fn environment_of_each_launcher_parses() {
        let process_of = |vars: &[(&str, &str)]| {
            let vars: HashMap<String, String> = vars
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect();
            JobProcess::from_vars(|name| vars.get(name).cloned())
        };
        assert_eq!(process_of(&[]), None);
        let ompi = process_of(&[
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
            ("PMIX_NAMESPACE", "12/34"),
        ]);
        assert_eq!(
            ompi,
            Some(JobProcess {
                rank: 3,
                size: 4,
                job: "12-34-".to_owned(),
                local: true
            })
        );
        let pmi = process_of(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")]).unwrap();
        assert_eq!((pmi.rank, pmi.size, pmi.local), (0, 2, false));
        assert_eq!(process_of(&[("PMI_RANK", "2"), ("PMI_SIZE", "2")]), None);
    }
}
