"""What tests run in processes of their own, by `helpers.running.run_program`."""
