//! How much of everything: named sizes, from seconds to the report's own.

use super::kind::Demo;
use std::fmt;
use std::str::FromStr;

/// So many clients with so many threads each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crowd {
    /// Nodes, each with an address of its own.
    pub clients: usize,
    /// Threads of each, each with a mount of its own.
    pub threads: usize,
}

impl Crowd {
    /// All threads.
    pub fn all(self) -> usize {
        self.clients * self.threads
    }
}

impl fmt::Display for Crowd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.clients, self.threads)
    }
}

/// Clients that a demonstration may have: addresses on loopback are few.
const CLIENTS_MAX: usize = 64;
/// Threads of all of them.
const THREADS_MAX: usize = 4096;

impl FromStr for Crowd {
    type Err = String;

    fn from_str(text: &str) -> Result<Crowd, String> {
        let number = |n: &str| n.parse().ok().filter(|n| (1..=THREADS_MAX).contains(n));
        let crowd = text.split_once('x').and_then(|(clients, threads)| {
            let (clients, threads) = (number(clients)?, number(threads)?);
            Some(Crowd { clients, threads })
        });
        crowd
            .filter(|c| c.clients <= CLIENTS_MAX && c.all() <= THREADS_MAX)
            .ok_or_else(|| {
                format!(
                    "expected CLIENTSxTHREADS such as 4x16, with at most {CLIENTS_MAX} clients and {THREADS_MAX} threads of all"
                )
            })
    }
}

/// How much of everything.
#[derive(Clone, Debug, PartialEq)]
pub struct Size {
    /// How often everything is measured.
    pub runs: usize,
    /// Seconds of each measurement of LNet.
    pub seconds: f64,
    /// Clients of LNet selftest.
    pub lnet_clients: Vec<usize>,
    /// Requests in flight of each of them.
    pub lnet_concurrency: usize,
    /// Requests in flight of one alone.
    pub in_flight: Vec<usize>,
    /// Client threads of the loads with files.
    pub crowds: Vec<Crowd>,
    /// Mounts of one client alone.
    pub mounts: Vec<usize>,
    /// Files of all threads together.
    pub files: usize,
    /// Stripe counts.
    pub stripes: Vec<u16>,
}

/// Names of the sizes, from the least on.
pub const SIZES: [&str; 4] = ["tiny", "small", "medium", "report"];

impl Size {
    /// The size of a name: seconds, minutes, an hour or two, and the report's own.
    pub fn named(demo: Demo, name: &str) -> Option<Size> {
        let crowds = |all: &[(usize, usize)]| {
            let crowd = |&(clients, threads): &(usize, usize)| Crowd { clients, threads };
            all.iter().map(crowd).collect::<Vec<_>>()
        };
        let pdo = demo == Demo::Pdo;
        let tiny = Size {
            runs: 1,
            seconds: 0.1,
            lnet_clients: vec![2],
            lnet_concurrency: 8,
            in_flight: vec![1],
            crowds: crowds(&[(2, 2)]),
            mounts: vec![2],
            files: 40,
            stripes: vec![1],
        };
        Some(match name {
            "tiny" => tiny,
            "small" => Size {
                runs: 3,
                seconds: 0.3,
                lnet_clients: vec![1, 4, 16],
                lnet_concurrency: 64,
                in_flight: vec![1, 8, 64],
                crowds: match pdo {
                    true => crowds(&[(1, 1), (2, 2), (4, 4), (4, 16)]),
                    false => crowds(&[(1, 2), (2, 8), (4, 16)]),
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
                crowds: match pdo {
                    true => crowds(&[(1, 1), (1, 4), (4, 4), (8, 8), (8, 32), (16, 32)]),
                    false => crowds(&[(1, 16), (2, 16), (4, 16), (8, 16), (16, 16)]),
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
                crowds: match pdo {
                    true => crowds(&[
                        (1, 1),
                        (2, 2),
                        (4, 4),
                        (4, 16),
                        (8, 16),
                        (8, 32),
                        (16, 24),
                        (16, 32),
                    ]),
                    false => crowds(&[(1, 48), (2, 48), (4, 48), (6, 48), (8, 48), (12, 48), (16, 48)]),
                },
                mounts: vec![2, 4, 8, 12, 16, 20, 24, 28, 32],
                files: if pdo { 1_000_000 } else { 256 << 10 },
                stripes: vec![0, 1, 2, 4],
            },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn crowds_are_clients_times_threads() {
        assert_eq!("16x32".parse::<Crowd>().unwrap().all(), 512);
        for wrong in ["", "4", "x4", "0x4", "4x0", "65x1", "64x65", "4x4x4"] {
            let why = wrong.parse::<Crowd>().unwrap_err();
            assert!(why.contains("CLIENTSxTHREADS"), "{wrong}");
        }
    }
}
