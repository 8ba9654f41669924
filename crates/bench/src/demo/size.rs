//! Sizes of a demonstration, from one that takes seconds to the size of the published report.

use super::kind::Demo;
use std::fmt;
use std::str::FromStr;

/// A number of client nodes, and a number of threads on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientThreads {
    /// Client nodes, each with its own address.
    pub clients: usize,
    /// Threads of each client, each with its own mount.
    pub threads: usize,
}

impl ClientThreads {
    /// The number of threads of all clients.
    pub fn total(self) -> usize {
        self.clients * self.threads
    }
}

impl fmt::Display for ClientThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.clients, self.threads)
    }
}

/// The most clients: each needs a loopback address of its own.
const CLIENTS_MAX: usize = 64;
/// The most threads of all clients.
const THREADS_MAX: usize = 4096;

impl FromStr for ClientThreads {
    type Err = String;

    fn from_str(text: &str) -> Result<ClientThreads, String> {
        let number = |n: &str| n.parse().ok().filter(|n| (1..=THREADS_MAX).contains(n));
        let client_threads = text.split_once('x').and_then(|(clients, threads)| {
            let (clients, threads) = (number(clients)?, number(threads)?);
            Some(ClientThreads { clients, threads })
        });
        client_threads
            .filter(|c| c.clients <= CLIENTS_MAX && c.total() <= THREADS_MAX)
            .ok_or_else(|| {
                format!(
                    "expected CLIENTSxTHREADS such as 4x16, with at most {CLIENTS_MAX} clients and {THREADS_MAX} threads in total"
                )
            })
    }
}

/// The size of a demonstration.
#[derive(Clone, Debug, PartialEq)]
pub struct Size {
    /// Number of runs.
    pub runs: usize,
    /// Duration of each LNet measurement, seconds.
    pub seconds: f64,
    /// Numbers of clients of LNet selftest, one for each load.
    pub lnet_clients: Vec<usize>,
    /// Requests in flight of each LNet selftest client.
    pub lnet_concurrency: usize,
    /// Numbers of requests in flight of a single LNet selftest client, one for each load.
    pub in_flight: Vec<usize>,
    /// Numbers of clients and of threads on each, of the loads with files.
    pub client_threads: Vec<ClientThreads>,
    /// Numbers of mounts of a single client node, one for each load.
    pub mounts: Vec<usize>,
    /// Number of files of all threads together.
    pub files: usize,
    /// Stripe counts of the files, one for each load.
    pub stripes: Vec<u16>,
}

/// The names of the sizes, smallest first.
pub const SIZES: [&str; 4] = ["tiny", "small", "medium", "report"];

impl Size {
    /// The size with a name of [`SIZES`]. `tiny` takes seconds, `small` minutes, and `medium` an
    /// hour or two. `report` has the range of the published report.
    pub fn named(demo: Demo, name: &str) -> Option<Size> {
        let client_threads = |all: &[(usize, usize)]| {
            let pair = |&(clients, threads): &(usize, usize)| ClientThreads { clients, threads };
            all.iter().map(pair).collect::<Vec<_>>()
        };
        let pdo = demo == Demo::Pdo;
        let dne = demo == Demo::Dne;
        let tiny = Size {
            runs: 1,
            seconds: 0.1,
            lnet_clients: vec![2],
            lnet_concurrency: 8,
            in_flight: vec![1],
            client_threads: client_threads(&[(2, 2)]),
            mounts: vec![2],
            files: 40,
            stripes: vec![1],
        };
        // The numbers of threads and files of the loads with several metadata targets.
        let dne_load = |clients, threads, files| (vec![ClientThreads { clients, threads }], files);
        let mut size = match name {
            "tiny" => tiny,
            "small" => Size {
                runs: 3,
                seconds: 0.3,
                lnet_clients: vec![1, 4, 16],
                lnet_concurrency: 64,
                in_flight: vec![1, 8, 64],
                client_threads: match pdo {
                    true => client_threads(&[(1, 1), (2, 2), (4, 4), (4, 16)]),
                    false => client_threads(&[(1, 2), (2, 8), (4, 16)]),
                },
                mounts: vec![2, 8, 32],
                files: 1024,
                stripes: vec![0, 1, 2, 4],
            },
            "medium" => Size {
                runs: 3,
                seconds: 1.0,
                lnet_clients: vec![1, 2, 4, 8, 16],
                lnet_concurrency: 64,
                in_flight: vec![1, 4, 16, 64],
                client_threads: match pdo {
                    true => client_threads(&[(1, 1), (1, 4), (4, 4), (8, 8), (8, 32), (16, 32)]),
                    false => client_threads(&[(1, 16), (2, 16), (4, 16), (8, 16), (16, 16)]),
                },
                mounts: vec![2, 4, 8, 16, 32],
                files: 16 << 10,
                stripes: vec![0, 1, 2, 4],
            },
            "report" => Size {
                runs: 5,
                seconds: 5.0,
                lnet_clients: vec![1, 2, 4, 6, 8, 10, 12, 14, 16],
                lnet_concurrency: 64,
                in_flight: vec![1, 2, 4, 8, 16, 24, 32, 40, 48, 64],
                client_threads: match pdo {
                    true => client_threads(&[
                        (1, 1),
                        (2, 2),
                        (4, 4),
                        (4, 16),
                        (8, 16),
                        (8, 32),
                        (16, 24),
                        (16, 32),
                    ]),
                    false => {
                        client_threads(&[(1, 48), (2, 48), (4, 48), (6, 48), (8, 48), (12, 48), (16, 48)])
                    }
                },
                mounts: vec![2, 4, 8, 12, 16, 20, 24, 28, 32],
                files: if pdo { 1_000_000 } else { 256 << 10 },
                stripes: vec![0, 1, 2, 4],
            },
            _ => return None,
        };
        if dne {
            (size.client_threads, size.files) = match name {
                "tiny" => dne_load(2, 4, 64),
                "small" => dne_load(4, 8, 8_000),
                "medium" => dne_load(8, 8, 40_000),
                _ => dne_load(50, 2, 2_000_000),
            };
        }
        Some(size)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn client_threads_parse_within_their_limits() {
        assert_eq!("16x32".parse::<ClientThreads>().unwrap().total(), 512);
        for wrong in ["", "4", "x4", "0x4", "4x0", "65x1", "64x65", "4x4x4"] {
            let error = wrong.parse::<ClientThreads>().unwrap_err();
            assert!(error.contains("CLIENTSxTHREADS"), "{wrong}");
        }
    }
}
