//! Nacre's client against simulated servers that answer from captures. Each capture's commands run
//! on Nacre's client, and the servers send the captured replies. The test compares each request of
//! the client, field by field, with the captured request of the kernel client.
//!
//! Accepted differences are in `differences.txt`, excluded captures in `not_played.txt`, each with
//! its reason. `NACRE_PLAY=d1_mkdir` plays one capture and prints its differences.
#![allow(clippy::unwrap_used, unreachable_pub)]

mod answer;
mod callbacks;
mod coherence;
mod compare;
mod generic;
mod ids;
mod key;
mod library;
mod scenario_run;
mod scenarios;
mod server;

use compare::Counts;
use scenario_run::ScenarioRun;
use std::sync::Arc;
use std::time::Duration;
use testbase::captured::differences::Table;

/// Least number of compared requests and replies to callbacks.
const MESSAGES_MIN: usize = 920;
/// Least number of compared fields.
const FIELDS_MIN: usize = 59_900;
/// Largest time of a scenario, by the test's clock.
const SCENARIO_TIME_MAX: Duration = Duration::from_secs(600);

/// Plays one capture.
async fn play(capture: &'static str, scenario: scenarios::Scenario) -> Result<Counts, String> {
    let run = Arc::new(ScenarioRun::mount(capture).await);
    run.set_comparing(true);
    let task_run = run.clone();
    let task = tokio::spawn(async move { scenario(&task_run).await });
    let result = tokio::time::timeout(SCENARIO_TIME_MAX, task).await;

    let failures = std::mem::take(&mut run.server.state.lock().failures);
    match result {
        Ok(Ok(())) if failures.is_empty() => Ok(run.end().await),
        Ok(Ok(())) => Err(format!("{capture}: {failures:#?}")),
        Ok(Err(e)) => Err(format!("{capture}: {e}: {failures:#?}")),
        Err(_) => Err(format!("{capture}: the scenario does not finish: {failures:#?}")),
    }
}

#[tokio::test(start_paused = true)]
async fn requests_match_the_captured_requests_of_a_kernel_client() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_test_writer()
        .try_init();
    let only = std::env::var("NACRE_PLAY").ok();
    let (mut all, mut failed) = (Counts::default(), Vec::new());
    for (capture, scenario) in scenarios::SCENARIOS {
        if only.as_ref().is_some_and(|o| o != capture) {
            continue;
        }
        match play(capture, *scenario).await {
            Ok(counts) => {
                println!(
                    "{capture}: {} messages, {} fields",
                    counts.messages, counts.fields
                );
                all.add(counts);
            }
            Err(fault) => failed.push(fault),
        }
    }
    let table = Table::parse(include_str!("differences.txt"));
    let unexplained = all.unexplained(&table);
    println!(
        "{} messages, {} fields, {} differences",
        all.messages,
        all.fields,
        all.differences.len()
    );
    for (difference, scenarios) in &unexplained {
        println!("{difference} {scenarios:?}");
    }
    for fault in &failed {
        println!("{fault}");
    }
    assert!(unexplained.is_empty() && failed.is_empty());
    if only.is_none() {
        assert_eq!(table.unused(), Vec::<&str>::new(), "rows that explain nothing");
        assert!(
            all.messages >= MESSAGES_MIN && all.fields >= FIELDS_MIN,
            "{} messages (minimum {MESSAGES_MIN}), {} fields (minimum {FIELDS_MIN})",
            all.messages,
            all.fields
        );
    }
}

#[test]
fn every_capture_is_played_or_excluded_with_a_reason() {
    let lines = include_str!("not_played.txt")
        .lines()
        .filter(|l| !l.is_empty() && !l.starts_with('#'));
    let mut all: Vec<_> = lines.map(|l| l.split_once(" : ").unwrap().0.to_owned()).collect();
    all.extend(
        scenarios::SCENARIOS
            .iter()
            .map(|(capture, _)| (*capture).to_owned()),
    );
    all.sort();
    assert_eq!(all, testbase::captured::labels());
}
