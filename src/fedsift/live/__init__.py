"""The page that shows runs while they run, from their folders alone: `fedsift serve`. No torch here."""
