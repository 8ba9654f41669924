//! The order in which a demonstration runs: experiment by experiment; in each, run by run and load by load all configurations
//! in turn, the other way round in every second run, so that what disturbs the machine disturbs them all.

use super::load::Load;
use super::plan::{Experiment, Plan, Setting};
use super::rows::{Row, Sample};
use crate::BenchError;
use std::sync::atomic::{AtomicBool, Ordering};

/// What measures.
pub trait Stage {
    /// Starts what an experiment needs.
    fn open(&mut self, experiment: &Experiment) -> Result<(), BenchError>;
    /// One load on one of its configurations.
    fn measure(&mut self, setting: &Setting, load: &Load) -> Result<Vec<Sample>, BenchError>;
    /// Stops what was started, also after an error.
    fn close(&mut self);
}

/// What is told while it runs.
#[derive(Debug)]
pub enum Word<'a> {
    /// What is measured now.
    Next {
        /// In words.
        text: String,
        /// How many measurements are done.
        done: usize,
        /// Of how many.
        all: usize,
    },
    /// What came of it.
    Rows(&'a [Row]),
}

/// Runs it all, until `stop` says that it is enough or something fails. What there is has been told.
pub fn run(
    plan: &Plan,
    stage: &mut dyn Stage,
    stop: &AtomicBool,
    told: &mut dyn FnMut(Word<'_>),
) -> Result<(), BenchError> {
    let mut done = 0;
    for experiment in &plan.experiments {
        let ended = stage
            .open(experiment)
            .and_then(|()| measure_all(plan, experiment, stage, stop, &mut done, told));
        stage.close();
        ended?;
    }
    Ok(())
}

fn measure_all(
    plan: &Plan,
    experiment: &Experiment,
    stage: &mut dyn Stage,
    stop: &AtomicBool,
    done: &mut usize,
    told: &mut dyn FnMut(Word<'_>),
) -> Result<(), BenchError> {
    let mut settings: Vec<(bool, &Setting)> = experiment
        .settings
        .iter()
        .enumerate()
        .map(|(i, s)| (i == 0, s))
        .collect();
    for run in 1..=plan.runs {
        for load in &experiment.loads {
            for &(baseline, setting) in &settings {
                if stop.load(Ordering::Relaxed) {
                    return Err(BenchError::Interrupted);
                }
                told(Word::Next {
                    text: format!(
                        "{}, run {run} of {}: {}: {load}",
                        experiment.kind.name(),
                        plan.runs,
                        setting.name
                    ),
                    done: *done,
                    all: plan.measurements(),
                });
                let samples = stage.measure(setting, load)?;
                let row = |s| Row::new(experiment.kind, setting, baseline, load, run, s);
                let rows: Vec<Row> = samples.into_iter().map(row).collect();
                told(Word::Rows(&rows));
                *done += 1;
            }
        }
        settings.reverse();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::demo::{Demo, Kind, Room, Size};
    use std::collections::HashMap;

    /// Notes what is done.
    #[derive(Default)]
    struct Noted {
        open: usize,
        measured: Vec<String>,
        fails_at: Option<usize>,
    }

    impl Stage for Noted {
        fn open(&mut self, _: &Experiment) -> Result<(), BenchError> {
            self.open += 1;
            Ok(())
        }

        fn measure(&mut self, setting: &Setting, load: &Load) -> Result<Vec<Sample>, BenchError> {
            assert_eq!(self.open, 1);
            if self.fails_at == Some(self.measured.len()) {
                return Err(BenchError::Apart);
            }
            self.measured.push(format!("{} {load}", setting.name));
            Ok(vec![Sample {
                operation: "create".to_owned(),
                operations: 10,
                seconds: 2.0,
                cpu_us: 1.0,
                server_cpu_us: 0.5,
                latency_us: None,
            }])
        }

        fn close(&mut self) {
            self.open -= 1;
        }
    }

    fn plan() -> Plan {
        let room = Room {
            cpus: 2,
            published: 1,
            osts: 1,
            forced: false,
        };
        let size = Size {
            runs: 2,
            ..Size::named(Demo::Smp, "small").unwrap()
        };
        Plan::new(Demo::Smp, &size, &room, &[Kind::Mounts, Kind::Cpt])
    }

    #[test]
    fn everything_is_measured_so_often_beside_its_baseline() {
        let (plan, mut stage, mut rows) = (plan(), Noted::default(), Vec::new());
        run(&plan, &mut stage, &AtomicBool::new(false), &mut |word| {
            if let Word::Rows(new) = word {
                rows.extend_from_slice(new);
            }
        })
        .unwrap();
        assert_eq!((stage.open, stage.measured.len()), (0, plan.measurements()));
        let mut often = HashMap::new();
        for what in &stage.measured {
            *often.entry(what).or_insert(0) += 1;
        }
        // The two configurations of the first experiment are in the second too.
        assert!(often.values().all(|n| [2, 4].contains(n)), "{often:?}");
        // Around a load, all configurations; the other way round in the second run.
        assert!(stage.measured[0].starts_with("1 (1:1)") && stage.measured[1].starts_with("2 (2:2)"));
        assert!(stage.measured[6].starts_with("2 (2:2)") && stage.measured[7].starts_with("1 (1:1)"));
        assert_eq!(rows.len(), plan.measurements());
        assert!(
            rows.iter()
                .all(|r| r.rate == 5.0 && r.baseline == (r.configuration == "1 (1:1)"))
        );
        assert_eq!(rows.iter().map(|r| r.run).max(), Some(2));
    }

    #[test]
    fn an_error_and_an_interruption_leave_what_there_is_and_nothing_open() {
        let (plan, mut rows) = (plan(), 0);
        let mut stage = Noted {
            fails_at: Some(3),
            ..Noted::default()
        };
        let mut count = |word: Word<'_>| {
            if let Word::Rows(new) = word {
                rows += new.len();
            }
        };
        let ended = run(&plan, &mut stage, &AtomicBool::new(false), &mut count);
        assert!(matches!(ended, Err(BenchError::Apart)));
        assert_eq!((rows, stage.open), (3, 0));

        let stop = AtomicBool::new(false);
        let mut stage = Noted::default();
        let ended = run(&plan, &mut stage, &stop, &mut |word| {
            if matches!(word, Word::Next { done: 1, .. }) {
                stop.store(true, Ordering::Relaxed);
            }
        });
        assert!(matches!(ended, Err(BenchError::Interrupted)));
        assert_eq!((stage.measured.len(), stage.open), (2, 0));
    }
}
