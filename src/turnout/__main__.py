"""`python -m turnout`."""

try:
    from turnout.cli.main import main
except KeyboardInterrupt:
    raise SystemExit(130) from None

main()
